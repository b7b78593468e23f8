"""A report as a LaTeX document whose tables (booktabs) can be copied into a paper."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from srpo_train.reporting.tables import Block, Cell, Document, Section, Table, column_groups, plain

_PREAMBLE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{booktabs}
\usepackage{graphicx}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\setlength{\parindent}{0pt}
\begin{document}"""

_WIDE = 7  # columns that a page of a paper holds without being scaled down

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # at the start of a line it would be an option of the rule or line break before it
    "*": "{*}",  # likewise
    "±": r"\ensuremath{\pm}",
    "×": r"\ensuremath{\times}",
    "·": r"\textperiodcentered{}",
    "Δ": r"\ensuremath{\Delta}",
    "→": r"\ensuremath{\rightarrow}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "’": "'",
    "‘": "`",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}


def to_latex(document: Document) -> str:
    """Return a report as a complete document that compiles with any LaTeX engine; no text in it can become a command.

    Letters outside Latin-1, which the usual engines cannot print without further fonts, are written by their number.
    """
    parts = [_PREAMBLE, rf"\section*{{{_escape(document.title)}}}", *map(_escape, document.paragraphs)]
    for section in document.sections:
        parts += _section(section)
    return "\n\n".join([*parts, r"\end{document}"]) + "\n"


def table_to_latex(table: Table) -> str:
    """Return one table environment."""
    inner = "\n".join(_tabular(table))
    if len(table.columns) > _WIDE:
        inner = f"\\resizebox{{\\linewidth}}{{!}}{{%\n{inner}%\n}}"
    notes = "\n".join(rf"\par\smallskip{{\footnotesize {_escape(note)}}}" for note in table.notes)
    caption = rf"\caption{{{_escape(table.title)}}}"
    return "\n".join(filter(None, [r"\begin{table}[ht]", r"\centering", caption, inner, notes, r"\end{table}"]))


def _section(section: Section) -> Iterator[str]:
    yield rf"\subsection*{{{_escape(section.title)}}}"
    yield from map(_escape, section.paragraphs)
    yield from map(table_to_latex, section.tables)
    yield r"\clearpage"  # tables float, and no more than a page of them can wait


def _tabular(table: Table) -> Iterator[str]:
    yield r"\begin{tabular}{l" + "".join("l" if column.is_text else "r" for column in table.columns) + "}"
    yield r"\toprule"
    yield from _group_headings(table)
    yield _line([_escape(table.row_heading), *(_escape(column.name) for column in table.columns)])
    for block in table.blocks:
        yield r"\midrule"
        yield from _block(block, len(table.columns) + 1)
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _group_headings(table: Table) -> Iterator[str]:
    groups = column_groups(table.columns)
    if not groups:
        return
    yield _line(["", *(rf"\multicolumn{{{width}}}{{c}}{{{_escape(name)}}}" for name, width in groups)])
    ends = list(accumulate((width for _, width in groups), initial=1))
    rules = zip(groups, ends[:-1], ends[1:], strict=True)
    yield " ".join(rf"\cmidrule(lr){{{first + 1}-{last}}}" for (name, _), first, last in rules if name)


def _block(block: Block, width: int) -> Iterator[str]:
    if block.title:
        yield rf"\multicolumn{{{width}}}{{l}}{{\textit{{{_escape(block.title)}}}}} \\"
    for row in block.rows:
        yield _line([_escape(row.name), *map(_cell, row.cells)])


def _cell(cell: Cell) -> str:
    text = rf"\textbf{{{_escape(cell.text)}}}" if cell.is_best else _escape(cell.text)
    return text + (rf"\,{{\scriptsize$\pm$\,{_escape(cell.spread)}}}" if cell.spread else "")


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    return "".join(map(_character, plain(text))).replace("--", "-{}-")  # which would join into a dash


def _character(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    return character if ord(character) < 0x100 else rf"\texttt{{U+{ord(character):04X}}}"
