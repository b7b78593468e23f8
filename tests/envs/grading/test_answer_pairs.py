"""The table of answer pairs beside this file: every verdict of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from srpo_envs.errors import UnreadableGoldError
from srpo_envs.grading import is_equivalent

PAIRS = Path(__file__).with_name("answer_pairs.txt")


def _read_pairs() -> dict[str, list[tuple[bool, str, str]]]:
    pairs: dict[str, list[tuple[bool, str, str]]] = {}
    kind = ""
    for line in PAIRS.read_text(encoding="utf-8").split("\n"):
        if line.startswith("# "):
            kind = line[2:]
        elif line.startswith(("= ", "! ")):
            gold, answer = line[2:].split("|||")
            pairs.setdefault(kind, []).append((line[0] == "=", gold.strip(), answer.strip()))
    return pairs


KINDS = _read_pairs()


def _verdict(gold: str, answer: str) -> bool:
    try:
        return is_equivalent(gold, answer)
    except UnreadableGoldError:
        return False


def test_the_table_has_both_verdicts() -> None:
    verdicts = [verdict for pairs in KINDS.values() for verdict, _, _ in pairs]
    assert len(verdicts) > 2000
    assert 900 < sum(verdicts) < 1500


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_verdict_of_a_kind(kind: str) -> None:
    wrong = [(gold, answer) for verdict, gold, answer in KINDS[kind] if _verdict(gold, answer) != verdict]
    assert wrong == []
