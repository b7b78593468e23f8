"""One decision about two answer texts, with a judge."""

from __future__ import annotations

from .compare import Judge, equal
from .logic import Verdict
from .nodes import Node, Quantity, Unreadable
from .normal_form import allow_work
from .reader import chosen_letters, gold_letters, read

FAILURES = (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError)
"""What arithmetic on hostile text may raise; the check is then undecided, never right."""


def decide(gold: str, answer: str, judge: Judge) -> Verdict:
    """Whether an answer equals a gold: True, False, or None when the judge cannot tell.

    Args:
        gold: the gold text; reading it must have succeeded before.
        answer: the content of the model's box.
        judge: what decides the leaves.
    """
    allow_work(judge.max_work)
    letters = gold_letters(gold)
    if letters is not None and (chosen := chosen_letters(answer)) is not None:
        return chosen == letters
    try:
        wanted, given = read(gold), read(answer)
    except Unreadable:
        return False
    verdict = equal(wanted, given, judge)
    if verdict is not True and _has_unit(wanted) != _has_unit(given):
        verdict = _with_bare_units(gold, answer, judge) or verdict
    return verdict


def _has_unit(node: Node) -> bool:
    return isinstance(node, Quantity) or any(_has_unit(child) for child in node.children())


def _with_bare_units(gold: str, answer: str, judge: Judge) -> Verdict:
    """Compare once more with single letters after numbers as units, as in `5 m` beside a gold in metres."""
    try:
        wanted, given = read(gold, bare_units=True), read(answer, bare_units=True)
    except Unreadable:
        return False
    if not (_has_unit(wanted) and _has_unit(given)):
        return False
    return equal(wanted, given, judge)
