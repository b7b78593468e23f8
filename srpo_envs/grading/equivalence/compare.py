"""Whether two answers are the same: structure first, then leaf by leaf, in three-valued logic.

`True` and `False` are decisions, `None` means that the judge at hand cannot decide a leaf. The same rules run with a
cheap judge in the calling process and, for what that one leaves open, with a thorough judge in a worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from . import normal_form
from .logic import MAX_ITEMS, Verdict, all_of, any_of, matched
from .nodes import (
    SCALARS,
    Add,
    AllOf,
    AnyOf,
    BaseNumber,
    Clock,
    Func,
    Inf,
    Listing,
    Matrix,
    Mul,
    Node,
    Num,
    Quantity,
    Ratio,
    Rel,
    SetOf,
    Sym,
    Text,
    Tup,
    all_symbols,
    negative,
    quotient,
    symbols,
)
from .real_sets import FLIPPED, ORDER, Interval, is_condition, pieces
from .units import DEGREE, PERCENT, RADIAN

_FREE_CONSTANTS = frozenset(("C", "c", "K", "k", "D", "C_1", "c_1", "C_0", "c_0"))


class Judge(Protocol):
    """Decides what needs arithmetic."""

    max_work: int
    """What one question may cost in exact arithmetic, see `normal_form.allow_work`."""

    def scalars(self, left: Node, right: Node) -> Verdict:
        """Whether two expressions are equal."""

    def equations(self, left: Node, right: Node) -> Verdict:
        """Whether `left = 0` and `right = 0` say the same, being multiples of each other."""

    def solutions(self, left: Node, right: Node) -> Verdict:
        """Whether two conditions or sets of reals hold the same numbers."""


class CheapJudge:
    """Decides by exact rational-function arithmetic alone."""

    max_work = normal_form.CHEAP_WORK

    def scalars(self, left: Node, right: Node) -> Verdict:
        """See `Judge`."""
        return normal_form.is_equal(left, right)

    def equations(self, left: Node, right: Node) -> Verdict:
        """See `Judge`."""
        return True if normal_form.proportion(left, right) is not None else None

    def solutions(self, left: Node, right: Node) -> Verdict:
        """See `Judge`."""
        return None


# --- the rules ----------------------------------------------------------------------------------------------------


def equal(gold: Node, answer: Node, judge: Judge) -> Verdict:
    """Whether an answer says the same as the gold."""
    if gold == answer:
        return True
    if isinstance(gold, Text) or isinstance(answer, Text):
        return False
    for rule in (_mappings, _statements, _real_sets, _quantities, _ratios, _collections):
        handled, verdict = rule(gold, answer, judge)
        if handled:
            return verdict
    if isinstance(gold, SCALARS) and isinstance(answer, SCALARS):
        return _scalars(gold, answer, judge)
    return False


Handled = tuple[bool, Verdict]
_PASS: Handled = (False, None)


def _scalars(gold: Node, answer: Node, judge: Judge) -> Verdict:
    verdict = judge.scalars(gold, answer)
    if verdict is not True and isinstance(gold, Add) and isinstance(answer, Add):
        renamed = _same_free_constant(gold, answer)
        if renamed is not None:
            return any_of((verdict, judge.scalars(gold, renamed)))
    return verdict


def _same_free_constant(gold: Add, answer: Add) -> Node | None:
    """Rename the answer's additive constant of integration to the gold's `C`, or `C` to the gold's `c`."""
    theirs = [term for term in answer.terms if isinstance(term, Sym) and term.name in _FREE_CONSTANTS]
    if len(theirs) != 1:
        return None
    ours = Sym("C") if Sym("C") in gold.terms else Sym("c") if theirs[0] == Sym("C") else None
    if ours is None or ours not in gold.terms or theirs[0] == ours:
        return None
    name = theirs[0].name
    if name in symbols(gold) or sum(other == name for other in all_symbols(answer)) != 1:
        return None
    return Add(tuple(ours if term == theirs[0] else term for term in answer.terms))


# --- named values and equations -----------------------------------------------------------------------------------


def _name_of(node: Node) -> str | None:
    """Return the name an equation may give to its value: `x`, `f(x)`, `P(A)`, `AB`, `|AB|`; None for a formula."""
    if isinstance(node, Sym):
        return None if node.name in ("pi", "e", "i", "...") else node.name.removeprefix("angle ")
    if isinstance(node, Func) and node.name.startswith(":") and node.name != ":derivative":
        return str(node)
    if isinstance(node, Func) and node.name == "abs":
        inner = _name_of(node.args[0]) if isinstance(node.args[0], Mul) else None
        return None if inner is None else f"|{inner}|"
    if isinstance(node, Mul) and all(isinstance(factor, Sym) for factor in node.factors):
        names = [factor.name for factor in node.factors if isinstance(factor, Sym)]
        letters = names[1:] if names[0] in ("angle", "triangle") else names
        return "".join(names) if letters and all(name[0].isupper() for name in letters) else None
    return None


@dataclass(frozen=True, slots=True)
class _Named:
    name: str | None
    value: Node


def _is_equation(node: Node) -> bool:
    return isinstance(node, Rel) and set(node.ops) == {"="}


def _named(node: Node, judge: Judge) -> _Named | None:
    """Read `x = 9`, `x = 4 + 5 = 9` and `4 + 5 = 9` as a value, with its name if it has one."""
    if not isinstance(node, Rel) or set(node.ops) != {"="}:
        return None
    members = node.members
    if len(members) == 2 and isinstance(members[1], Sym) and not symbols(members[0]):
        members = members[::-1]
    name = _name_of(members[0])
    steps = members[1:] if name is not None else members
    value = steps[-1]
    if name is not None and isinstance(members[0], Sym) and name in symbols(value):
        return None
    if name is None and symbols(node):
        return None
    if not all(equal(step, value, judge) for step in steps[:-1]):
        return None
    return _Named(name, value)


def _mapping(node: Node, judge: Judge) -> dict[str, Node] | None:
    """Read `x = 3, y = -1` and `(x, y) = (3, -1)` as values by distinct names."""
    if isinstance(node, Rel) and _is_equation(node) and len(node.members) == 2:
        names, values = node.members
        if isinstance(names, Tup) and isinstance(values, Tup) and len(names.items) == len(values.items):
            keys = [_name_of(item) for item in names.items]
            return _distinct(keys, values.items)
    if isinstance(node, Listing):
        pairs = [_named(item, judge) for item in node.items]
        if all(pair is not None for pair in pairs):
            return _distinct([pair.name for pair in pairs if pair], [pair.value for pair in pairs if pair])
    return None


def _distinct(names: Sequence[str | None], values: Sequence[Node]) -> dict[str, Node] | None:
    if None in names or len(set(names)) != len(names) or len(names) < 2:
        return None
    return {name: value for name, value in zip(names, values, strict=True) if name is not None}


def _mappings(gold: Node, answer: Node, judge: Judge) -> Handled:
    left, right = _mapping(gold, judge), _mapping(answer, judge)
    if left is None and right is None:
        return _PASS
    if left is not None and right is not None:
        if left.keys() != right.keys():
            return True, False
        return True, all_of(equal(left[name], right[name], judge) for name in left)
    mapping, other = (left, answer) if left is not None else (right, gold)
    assert mapping is not None
    if not isinstance(other, Tup) or other.opening != "(" or len(other.items) != len(mapping):
        return True, False
    ordered = [mapping[name] for name in sorted(mapping)]
    return True, all_of(equal(x, y, judge) for x, y in zip(ordered, other.items, strict=True))


def _unnamed(node: Node, judge: Judge) -> _Named | None:
    """Read one named value, or several values of the same name, such as `x = 2 or x = 6`."""
    if isinstance(node, Rel) and node.ops == ("in",) and isinstance(node.members[0], Sym):
        return _Named(node.members[0].name, node.members[1])
    if not isinstance(node, Listing):
        return _named(node, judge)
    first = _named(node.items[0], judge)
    if first is None or first.name is None:
        return None
    values = [first.value]
    for item in node.items[1:]:
        found = _named(item, judge)
        if found is None and not isinstance(item, Rel):
            found = _Named(first.name, item)
        if found is None or found.name != first.name:
            return None
        values.append(found.value)
    return _Named(first.name, Listing(tuple(values)))


def _statements(gold: Node, answer: Node, judge: Judge) -> Handled:
    """Compare equations with equations, and named values with bare ones."""
    left, right = _unnamed(gold, judge), _unnamed(answer, judge)
    are_equations = _is_equation(gold) and _is_equation(answer)
    if left is not None and right is not None:
        if left.name == right.name or None in (left.name, right.name):
            verdict = equal(left.value, right.value, judge)
            return True, verdict
        if not are_equations:
            return True, False
    if are_equations:
        return True, _equations(gold, answer, judge)
    if left is None and right is None:
        return (True, False) if _is_equation(gold) or _is_equation(answer) else _PASS
    for named, other, swap in ((left, answer, False), (right, gold, True)):
        if named is not None and not _is_statement(other):
            if _condition_variables(other) - {named.name}:
                return True, False
            return True, equal(other, named.value, judge) if swap else equal(named.value, other, judge)
    return (True, False) if _is_equation(gold) or _is_equation(answer) else _PASS


def _is_statement(node: Node) -> bool:
    return isinstance(node, Rel) and not ORDER & set(node.ops)


def _equations(gold: Node, answer: Node, judge: Judge) -> Verdict:
    """Whether two equations with two sides say the same; longer chains must agree side by side."""
    assert isinstance(gold, Rel)
    assert isinstance(answer, Rel)
    if len(gold.members) != 2 or len(answer.members) != 2:
        if len(gold.members) != len(answer.members):
            return False
        return all_of(equal(x, y, judge) for x, y in zip(gold.members, answer.members, strict=True))
    if not all(isinstance(side, SCALARS) for side in (*gold.members, *answer.members)):
        return all_of(equal(x, y, judge) for x, y in zip(gold.members, answer.members, strict=True))
    sides = [Add((rel.members[0], negative(rel.members[1]))) for rel in (gold, answer)]
    if not symbols(sides[0]) or symbols(sides[0]) != symbols(sides[1]):
        return False
    return judge.equations(sides[0], sides[1])


# --- conditions and sets of real numbers --------------------------------------------------------------------------


def _real_sets(gold: Node, answer: Node, judge: Judge) -> Handled:
    if not is_condition(gold) and not is_condition(answer):
        return _PASS
    for side, other in ((gold, answer), (answer, gold)):
        if isinstance(side, Listing) and all(is_condition(item) for item in side.items):
            return True, any_of(_same_reals(other, join(side.items), judge) for join in (AllOf, AnyOf))
    for side in (gold, answer):
        if (
            not is_condition(side)
            and not isinstance(side, SetOf)
            and not (isinstance(side, Tup) and len(side.items) == 2)
        ):
            return True, False
    return True, _same_reals(gold, answer, judge)


def _same_reals(gold: Node, answer: Node, judge: Judge) -> Verdict:
    variables = [_condition_variables(side) for side in (gold, answer)]
    if all(variables) and variables[0] != variables[1]:
        return False
    if max(len(names) for names in variables) > 1:
        return _same_relations(gold, answer, judge)
    left, right = pieces(gold), pieces(answer)
    if left is None or right is None:
        return judge.solutions(gold, answer)
    verdict = matched(left, right, lambda x, y: _same_piece(x, y, judge))
    if verdict is False and (len(left) > 1 or len(right) > 1):
        return judge.solutions(gold, answer)
    return verdict


def _condition_variables(node: Node) -> set[str]:
    if isinstance(node, (Rel, AnyOf, AllOf)):
        return symbols(node)
    return set().union(*(_condition_variables(child) for child in node.children()))


def _same_piece(left: object, right: object, judge: Judge) -> Verdict:
    if isinstance(left, Interval) and isinstance(right, Interval):
        if (left.is_low_closed, left.is_high_closed) != (right.is_low_closed, right.is_high_closed):
            return False
        return all_of((equal(left.low, right.low, judge), equal(left.high, right.high, judge)))
    if isinstance(left, Node) and isinstance(right, Node):
        return equal(left, right, judge)
    return False


def _same_relations(gold: Node, answer: Node, judge: Judge) -> Verdict:
    """Compare single order relations in several variables up to a positive factor."""
    sides = [_one_sided(node) for node in (gold, answer)]
    if sides[0] is None or sides[1] is None:
        return _same_members(gold, answer, judge)
    (left_op, left), (right_op, right) = sides[0], sides[1]
    factor = normal_form.proportion(left, right)
    if factor is None:
        return False
    return left_op == (right_op if factor > 0 else FLIPPED[right_op])


def _one_sided(node: Node) -> tuple[str, Node] | None:
    if not isinstance(node, Rel) or len(node.members) != 2 or not all(isinstance(m, SCALARS) for m in node.members):
        return None
    return node.ops[0], Add((node.members[0], negative(node.members[1])))


def _same_members(gold: Node, answer: Node, judge: Judge) -> Verdict:
    if isinstance(gold, Rel) and isinstance(answer, Rel):
        if len(gold.members) != len(answer.members):
            return False
        for ops, members in ((answer.ops, answer.members), _reversed_chain(answer)):
            if ops == gold.ops:
                return all_of(equal(x, y, judge) for x, y in zip(gold.members, members, strict=True))
        return False
    if type(gold) is type(answer) and isinstance(gold, (AnyOf, AllOf)):
        return matched(gold.items, answer.children(), lambda x, y: equal(x, y, judge))
    return False


def _reversed_chain(node: Rel) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    return tuple(FLIPPED.get(op, op) for op in reversed(node.ops)), node.members[::-1]


# --- quantities, ratios, numerals ---------------------------------------------------------------------------------

_PI = Sym("pi")


def _quantities(gold: Node, answer: Node, judge: Judge) -> Handled:
    if isinstance(gold, Quantity) and isinstance(answer, Quantity):
        return True, _two_quantities(gold, answer, judge)
    if isinstance(gold, Quantity):
        return True, _quantity_and_number(gold, answer, judge)
    if isinstance(answer, Quantity):
        return True, _quantity_and_number(answer, gold, judge)
    return _PASS


def _two_quantities(left: Quantity, right: Quantity, judge: Judge) -> Verdict:
    angles = (DEGREE[0], RADIAN[0])
    if left.unit != right.unit:
        if left.unit in angles and right.unit in angles:
            return judge.scalars(_radians(left), _radians(right))
        return False
    if left.factor == right.factor:
        return judge.scalars(left.value, right.value)
    scaled = [Mul((Num(side.factor), side.value)) for side in (left, right)]
    return judge.scalars(scaled[0], scaled[1])


def _radians(angle: Quantity) -> Node:
    return angle.value if angle.unit == RADIAN[0] else Func("deg", (angle.value,))


def _quantity_and_number(quantity: Quantity, number: Node, judge: Judge) -> Verdict:
    """Compare a value that has a unit with one whose unit was left out."""
    if not isinstance(number, SCALARS):
        return False
    if quantity.unit == PERCENT[0]:
        share = judge.scalars(quotient(quantity.value, Num(Fraction(100))), number)
        return any_of((share, judge.scalars(quantity.value, number) if _may_be_percent(number) else False))
    if quantity.unit == DEGREE[0] and "pi" in all_symbols(number):
        return judge.scalars(_radians(quantity), number)
    return judge.scalars(quantity.value, number)


def _may_be_percent(number: Node) -> bool:
    """Whether a bare number is large enough to be a percentage rather than a share."""
    value = normal_form.rational_value(number)
    return not symbols(number) if value is None else abs(value) > 1


def _ratios(gold: Node, answer: Node, judge: Judge) -> Handled:
    if isinstance(gold, Clock) and isinstance(answer, Clock):
        return True, _same_time(gold, answer)
    if isinstance(gold, Ratio) and isinstance(answer, Clock) and not answer.meridiem:
        return True, equal(gold, Ratio((Num(Fraction(answer.hour)), Num(Fraction(answer.minute)))), judge)
    for side, other in ((gold, answer), (answer, gold)):
        if isinstance(side, Clock):
            written = Ratio((Num(Fraction(side.hour)), Num(Fraction(side.minute))))
            return True, other == written and not side.meridiem
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        if len(gold.items) != len(answer.items):
            return True, False
        return True, _proportional(gold.items, answer.items, judge)
    for side, other in ((gold, answer), (answer, gold)):
        if isinstance(side, Ratio):
            if len(side.items) != 2 or not isinstance(other, SCALARS) or _is_whole(other):
                return True, False
            return True, judge.scalars(quotient(side.items[0], side.items[1]), other)
    if isinstance(gold, (BaseNumber, Inf)) or isinstance(answer, (BaseNumber, Inf)):
        return True, False
    return _PASS


def _is_whole(node: Node) -> bool:
    value = normal_form.rational_value(node)
    return value is not None and value.denominator == 1


def _same_time(left: Clock, right: Clock) -> bool:
    if left.minute != right.minute:
        return False
    if left.meridiem and right.meridiem:
        return left.hour == right.hour and left.meridiem == right.meridiem
    return left.hour == right.hour


def _proportional(left: Sequence[Node], right: Sequence[Node], judge: Judge) -> Verdict:
    pairs = [(x, y) for x, y in zip(left, right, strict=True)]
    crossed = [judge.scalars(Mul((left[0], y)), Mul((x, right[0]))) for x, y in pairs[1:]]
    return all_of((*crossed, *(_nonzero(item) for item in (*left, *right))))


def _nonzero(node: Node) -> Verdict:
    return normal_form.rational_value(node) != 0


# --- collections --------------------------------------------------------------------------------------------------


def _collections(gold: Node, answer: Node, judge: Judge) -> Handled:
    if isinstance(gold, Tup) and isinstance(answer, Tup):
        return True, _same_tuple(gold, answer, judge)
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        if len(gold.rows) != len(answer.rows):
            return True, False
        return True, all_of(_same_tuple(x, y, judge) for x, y in zip(gold.rows, answer.rows, strict=True))
    if isinstance(gold, (SetOf, Listing)) and isinstance(answer, (SetOf, Listing)):
        return True, _same_items(gold, answer, judge)
    if isinstance(gold, Listing) or isinstance(answer, Listing):
        return True, False
    return _PASS


def _same_tuple(left: Tup, right: Tup, judge: Judge) -> Verdict:
    if (left.opening, left.closing, len(left.items)) != (right.opening, right.closing, len(right.items)):
        return False
    return all_of(equal(x, y, judge) for x, y in zip(left.items, right.items, strict=True))


def _same_items(left: SetOf | Listing, right: SetOf | Listing, judge: Judge) -> Verdict:
    """Compare without order, unless an ellipsis makes the order matter; a set ignores repetitions."""
    if Sym("...") in left.items or Sym("...") in right.items:
        if len(left.items) != len(right.items):
            return False
        return all_of(equal(x, y, judge) for x, y in zip(left.items, right.items, strict=True))
    items = [_unique(side.items, judge) if isinstance(side, SetOf) else side.items for side in (left, right)]
    return matched(items[0], items[1], lambda x, y: equal(x, y, judge))


def _unique(items: Sequence[Node], judge: Judge) -> list[Node]:
    kept: list[Node] = []
    for item in items[:MAX_ITEMS]:
        if not any(equal(item, other, judge) for other in kept):
            kept.append(item)
    return kept if len(items) <= MAX_ITEMS else list(items)
