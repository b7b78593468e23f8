"""The table of docs/engines.md that says which engine keeps which promise."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs" / "engines.md"


def documented(engine: str) -> dict[str, str]:
    """The sign of each promise in an engine's column."""
    table = (DOCS.read_text(encoding="utf-8").partition("\n| promise |")[2]).partition("\n\n")[0]
    head, _, *rows = ["| promise |" + table.splitlines()[0], *table.splitlines()[1:]]
    titles = re.split(r" *\| *", head)
    column = titles.index(engine)
    return {cells[1]: cells[column] for cells in (re.split(r" *\| *", row) for row in rows)}


def found(report) -> dict[str, str]:
    """The same of a report."""
    return {result.promise: result.sign for result in report.results}
