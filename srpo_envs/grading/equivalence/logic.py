"""Three-valued logic: True and False are decisions, None means undecided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Verdict = bool | None
MAX_ITEMS = 64
"""Longer collections are never matched."""


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return False if any is False, else None if any is None, else True."""
    result: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        if verdict is None:
            result = None
    return result


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return True if any is True, else None if any is None, else False."""
    result: Verdict = False
    for verdict in verdicts:
        if verdict is True:
            return True
        if verdict is None:
            result = None
    return result


def matched(left: Sequence[Item], right: Sequence[Item], same: Callable[[Item, Item], Verdict]) -> Verdict:
    """Whether a one-to-one matching of equal items exists."""
    if len(left) != len(right) or len(left) > MAX_ITEMS:
        return False
    table = [[same(x, y) for y in right] for x in left]
    if _has_matching(table, (True,)):
        return True
    return None if _has_matching(table, (True, None)) else False


def _has_matching(table: list[list[Verdict]], accepted: tuple[Verdict, ...]) -> bool:
    """Whether every row finds its own column, by augmenting paths."""
    row_of_column: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, verdict in enumerate(table[row]):
            if verdict in accepted and column not in seen:
                seen.add(column)
                if column not in row_of_column or place(row_of_column[column], seen):
                    row_of_column[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))
