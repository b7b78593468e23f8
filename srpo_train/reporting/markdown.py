"""A report as Markdown, for GitHub and everything else that reads its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from srpo_train.reporting.tables import Block, Cell, Column, Document, Row, Section, Table, plain

_SPECIAL = re.compile(r"[\\`*_\[\]<>|#~&$!]|:(?=//)")


def to_markdown(document: Document) -> str:
    """Return a report as Markdown; no text in it can become markup."""
    parts = [f"# {escape(document.title)}", *map(escape, document.paragraphs)]
    for section in document.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def table_to_markdown(table: Table) -> str:
    """Return one table with its title and notes."""
    lines = "\n".join(_lines(table))
    return "\n\n".join([f"**{escape(table.title)}**", lines, *map(escape, table.notes)])


def _section(section: Section) -> Iterator[str]:
    yield f"## {escape(section.title)}"
    yield from map(escape, section.paragraphs)
    yield from map(table_to_markdown, section.tables)


def _lines(table: Table) -> Iterator[str]:
    yield _line([escape(table.row_heading), *map(_heading, table.columns)])
    yield "|" + "|".join([" :--- ", *(" :--- " if column.is_text else " ---: " for column in table.columns)]) + "|"
    for block in table.blocks:
        yield from _block(block, len(table.columns))


def _block(block: Block, num_columns: int) -> Iterator[str]:
    if block.title:
        yield _line([f"*{escape(block.title)}*", *[""] * num_columns])
    for row in block.rows:
        yield _row(row)


def _row(row: Row) -> str:
    return _line([escape(row.name), *map(_cell, row.cells)])


def _cell(cell: Cell) -> str:
    text = escape(cell.text) + (f" ± {cell.spread}" if cell.spread else "")
    return f"**{text}**" if cell.is_best else text


def _heading(column: Column) -> str:
    return escape(f"{column.group} {column.name}".strip())


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def code(text: str) -> str:
    """Return a text as code, outside of tables; nothing in it can end that."""
    return "`" + plain(text).replace("`", "'") + "`"


def escape(text: str) -> str:
    """Return a text as one line in which nothing is markup."""
    return _SPECIAL.sub(r"\\\g<0>", plain(text))
