"""Markdown, LaTeX and HTML: whole golden tables, and names that try to be markup."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from report_world import HOSTILE

from srpo_train.reporting.html import to_html
from srpo_train.reporting.latex import table_to_latex, to_latex
from srpo_train.reporting.markdown import table_to_markdown, to_markdown
from srpo_train.reporting.page import Page
from srpo_train.reporting.paper_tables import paper_section
from srpo_train.reporting.tables import Block, Cell, Column, Document, Row, Section, Table, plain
from srpo_train.viewer.text import visible

TABLE = Table(
    title="Scores (%)",
    columns=(
        Column(name="Avg@2", group="MATH500", better="higher"),
        Column(name="Pass@2", group="MATH500", better="higher"),
        Column(name="Device", is_text=True),
    ),
    blocks=(
        Block(
            title="Qwen3-4B",
            rows=(
                Row(name="GRPO", cells=(Cell(text="50.0"), Cell(), Cell(text="cpu"))),
                Row(
                    name="SRPO (n=3)", cells=(Cell(text="61.3", spread="0.5", is_best=True), Cell(text="70.0"), Cell())
                ),
            ),
        ),
    ),
    notes=("A note.",),
)


def hostile_document(names: Sequence[str] = HOSTILE) -> Document:
    rows = tuple(Row(name=name, cells=(Cell(text="1.0", is_best=True), Cell(text=name))) for name in names)
    table = Table(
        title=names[0],
        row_heading=names[1],
        columns=(Column(name=names[2], group=names[3]), Column(name=names[-1], is_text=True)),
        blocks=tuple(Block(title=name, rows=rows) for name in names),
        notes=tuple(names),
    )
    section = Section(title=names[-1], paragraphs=tuple(names), tables=(table,))
    return Document(title=names[1], paragraphs=tuple(names), sections=(section,))


# --- Markdown -----------------------------------------------------------------------------------------------------


def test_a_markdown_table() -> None:
    assert table_to_markdown(TABLE) == (
        "**Scores (%)**\n"
        "\n"
        "| Method | MATH500 Avg@2 | MATH500 Pass@2 | Device |\n"
        "| :--- | ---: | ---: | :--- |\n"
        "| *Qwen3-4B* |  |  |  |\n"
        "| GRPO | 50.0 | – | cpu |\n"
        "| SRPO (n=3) | **61.3 ± 0.5** | 70.0 | – |\n"
        "\n"
        "A note."
    )


def test_markdown_shows_hostile_names_as_they_are() -> None:
    html = MarkdownIt("commonmark").enable("table").render(to_markdown(hostile_document()))
    page = ParsedPage(html)
    assert page.tags <= {"h1", "h2", "p", "strong", "em", "table", "thead", "tbody", "tr", "th", "td"}
    names = [normal(plain(name)) for name in HOSTILE]
    lines = [row for row in page.rows if len(row) == 3]
    assert len(lines) == 1 + len(names) * (1 + len(names))  # the heading; a title and all rows in each block
    assert [row[0] for row in lines[2 : 2 + len(names)]] == names
    assert [row[2] for row in lines[2 : 2 + len(names)]] == names


# --- LaTeX --------------------------------------------------------------------------------------------------------


def test_a_latex_table() -> None:
    assert table_to_latex(TABLE) == "\n".join(
        [
            r"\begin{table}[ht]",
            r"\centering",
            r"\caption{Scores (\%)}",
            r"\begin{tabular}{lrrl}",
            r"\toprule",
            r" & \multicolumn{2}{c}{MATH500} & \multicolumn{1}{c}{} \\",
            r"\cmidrule(lr){2-3}",
            r"Method & Avg@2 & Pass@2 & Device \\",
            r"\midrule",
            r"\multicolumn{4}{l}{\textit{Qwen3-4B}} \\",
            r"GRPO & 50.0 & \textendash{} & cpu \\",
            r"SRPO (n=3) & \textbf{61.3}\,{\scriptsize$\pm$\,0.5} & 70.0 & \textendash{} \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\par\smallskip{\footnotesize A note.}",
            r"\end{table}",
        ]
    )


COMMANDS = """
    documentclass IfFileExists
    usepackage setlength parindent begin end section subsection caption centering resizebox linewidth
    toprule midrule bottomrule cmidrule multicolumn textit textbf scriptsize footnotesize par smallskip clearpage pm
    textbackslash textasciitilde textasciicircum textless textgreater textbar textquotedbl textasciigrave ensuremath
    times Delta rightarrow textperiodcentered textendash textemdash ldots texttt
"""
"""What we write ourselves; a name must add nothing to it."""


@pytest.mark.parametrize(
    "document", [hostile_document(), Document(title="x", paragraphs=(), sections=(paper_section(),))]
)
def test_latex_is_whole_whatever_the_names(document: Document) -> None:
    text = to_latex(document)
    assert set(re.findall(r"\\([A-Za-z]+)", text)) <= set(COMMANDS.split())
    body = re.sub(r"\\(?:[A-Za-z]+|.)", lambda m: r"\\" if m[0] == r"\\" else "", text)  # only bare characters are left
    assert not re.search(r"[#~^_]|%(?!\n)", body)  # a % ends a line of ours only
    assert body.count("{") == body.count("}")
    assert body.count("$") % 2 == 0
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z]+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    for spec, content in re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        lines = [line for line in content.split("\n") if line.endswith(r" \\")]
        assert lines
        for line in lines:
            spans = [int(width) for width in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            cells = len(re.findall(r"(?<!\\)&", line)) + 1
            assert cells - len(spans) + sum(spans) == len(spec)
            assert not line.startswith(("[", "*"))  # would be read as an option of the line before


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_whatever_the_names(tmp_path: Path) -> None:
    section = hostile_document(HOSTILE[:4]).sections[0]  # of all names the table would be longer than a page
    document = Document(title=HOSTILE[3], paragraphs=HOSTILE, sections=(section, paper_section()))
    (tmp_path / "report.tex").write_text(to_latex(document), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Float too large" not in done.stdout
    assert (tmp_path / "report.pdf").stat().st_size > 10_000


def test_letters_that_engines_lack_are_written_by_number() -> None:
    document = Document(title="名 é ±", paragraphs=(), sections=())
    assert r"\section*{\texttt{U+540D} é \ensuremath{\pm}}" in to_latex(document)


# --- HTML ---------------------------------------------------------------------------------------------------------


def test_html_is_one_page_that_loads_nothing_and_has_a_dark_side() -> None:
    text = to_html(Page(title="Compared", paragraphs=("Lead.",), parts=(Section(title="S", tables=(TABLE,)),)))
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|src=|<link|<script|@import|url\(", text)
    assert '<th class="group" colspan="2">MATH500</th>' in text
    assert '<td class="best">61.3 <span class="spread">± 0.5</span></td>' in text
    rows = ParsedPage(text).rows
    assert rows[-2:] == [["GRPO", "50.0", "–", "cpu"], ["SRPO (n=3)", "61.3 ± 0.5", "70.0", "–"]]


def test_html_shows_hostile_names_as_they_are() -> None:
    document = hostile_document()
    page = ParsedPage(to_html(Page(title=document.title, paragraphs=document.paragraphs, parts=document.sections)))
    assert not page.tags & {"script", "img", "a", "b", "code", "em", "link"}
    assert not page.attributes - {
        "lang", "charset", "name", "content", "http-equiv", "class", "colspan", "scope", "id", "tabindex", "role",
        "aria-label",
    }  # fmt: skip
    names = [normal(visible(name)) for name in HOSTILE]
    lines = [row for row in page.rows if len(row) == 3]
    assert [row[0] for row in lines[2 : 2 + len(names)]] == names
    assert [row[2] for row in lines[2 : 2 + len(names)]] == names


def normal(text: str) -> str:
    return " ".join(text.split())


class ParsedPage(HTMLParser):
    """What a browser would see: tags, attributes, and the text of each table row's cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self._is_cell = False
        self.feed(text)
        self.rows = [[normal(cell) for cell in row] for row in self.rows]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.rows[-1][-1] += data
