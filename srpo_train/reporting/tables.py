"""Tables before they are Markdown, LaTeX or HTML: plain texts and numbers, with the best of each column marked.

Every text here is plain: names of models and methods may hold anything, and each writer makes them safe for its format.
"""

from __future__ import annotations

import math
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

ABSENT = "–"
"""Shown where nothing was measured."""

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One entry of a table."""

    text: str = ABSENT
    """A number as it is shown, or words."""
    spread: str = ""
    """What follows the ±; empty without any."""
    is_best: bool = False
    """Whether nothing of its column and block is better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column after the first, which holds the rows' names."""

    name: str
    """Its heading."""
    group: str = ""
    """Heading above it, shared with neighbours of the same group."""
    is_text: bool = False
    """Words, set to the left and allowed to wrap."""
    better: Better = ""
    """Which values are best, to be marked; empty marks none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a table."""

    name: str
    """What the line is about, such as a method."""
    cells: tuple[Cell, ...]
    """One for each column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Lines that are compared with each other."""

    title: str
    """Above the lines, such as a model; empty shows none."""
    rows: tuple[Row, ...]
    """The lines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with its title and what must be known to read it."""

    title: str
    """A phrase."""
    columns: tuple[Column, ...]
    """All but the first."""
    blocks: tuple[Block, ...]
    """Groups of lines."""
    row_heading: str = "Method"
    """Heading of the first column."""
    notes: tuple[str, ...] = ()
    """Sentences below it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Tables under one heading."""

    title: str
    """The heading."""
    paragraphs: tuple[str, ...] = ()
    """Before the tables."""
    tables: tuple[Table, ...] = ()
    """One after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A whole report."""

    title: str
    """On top."""
    paragraphs: tuple[str, ...]
    """Below it."""
    sections: tuple[Section, ...]
    """In order."""


@dataclass(frozen=True, slots=True)
class Score:
    """A measured number.

    Example:
        ``Score(0.613, 0.005)`` shown in percent is ``61.3 ± 0.5``.
    """

    mean: float
    """The number, or the mean over seeds."""
    spread: float | None = None
    """Sample standard deviation over seeds; None for a single one."""

    @classmethod
    def over(cls, values: Sequence[float]) -> Score:
        """Return mean and sample standard deviation over seeds; no deviation for a single one."""
        if not all(map(math.isfinite, values)):  # of which `statistics` takes no deviation
            return cls(statistics.fmean(values), math.nan if len(values) > 1 else None)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def cell(self, *, scale: float = 1.0, decimals: int = 1) -> Cell:
        """Return it as it is shown, multiplied by `scale`; what rounds to 0 has no sign."""
        spread = "" if self.spread is None else f"{self.spread * scale:z,.{decimals}f}"
        return Cell(text=f"{self.mean * scale:z,.{decimals}f}", spread=spread)


def mark_best(rows: Sequence[Row], columns: Sequence[Column]) -> tuple[Row, ...]:
    """Return rows in which the best numbers of each column are marked, as far as the shown digits tell them apart.

    A number that is alone in its column is not marked: it was compared with nothing.
    """
    marked = [list(row.cells) for row in rows]
    for place, column in enumerate(columns):
        if not column.better:
            continue
        values = {index: value for index, row in enumerate(rows) if (value := _number(row.cells[place])) is not None}
        if len(values) < 2:
            continue
        best = max(values.values()) if column.better == "higher" else min(values.values())
        for index, value in values.items():
            marked[index][place] = replace(marked[index][place], is_best=value == best)
    return tuple(replace(row, cells=tuple(cells)) for row, cells in zip(rows, marked, strict=True))


def column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return the headings above the columns, each with how many neighbours share it; empty without any."""
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and column.group and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return groups if any(name for name, _ in groups) else []


def plain(text: str) -> str:
    """Return a text as one line of visible characters: breaks become spaces, and what steers a terminal is replaced."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\r\t\u2028\u2029":
        return " "
    return "\ufffd" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character


def _number(cell: Cell) -> float | None:
    """The number a cell shows; None where it shows none, or one that does not compare."""
    value = math.nan if cell.text == ABSENT else float(cell.text.replace(",", ""))
    return None if math.isnan(value) else value
