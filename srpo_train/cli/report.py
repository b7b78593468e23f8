"""``srpo report``: the report of a run, or several runs and evaluations side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srpo_envs.errors import ConfigError
from srpo_train.cli._axis import Axis, AxisOption
from srpo_train.cli._labels import LabelOption, parse_labels

PAGE_FILE = "report.html"
"""Name of the page."""

_FOLDER = Path("reports")
_FILES = (".html", ".md", ".tex")


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_EVALUATION...", help="Runs, evaluation directories, or folders of them."),
    ],
    is_page: Annotated[
        bool, typer.Option("--html", help="One file to send around: curves, tables, alarms, sampled episodes.")
    ] = False,
    is_markdown: Annotated[bool, typer.Option("--md", help="The tables as Markdown.")] = False,
    is_latex: Annotated[bool, typer.Option("--latex", help="The tables as LaTeX.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files; the given one for the page of one, else reports/.")
    ] = None,
    labels: LabelOption = None,
    has_paper: Annotated[bool, typer.Option("--paper/--no-paper", help="Quote the paper's own numbers beside.")] = True,
    axis: AxisOption = Axis.STEP,
    num_episodes: Annotated[int, typer.Option("--episodes", min=0, help="Episodes of each run on the page.")] = 6,
    seed: Annotated[int, typer.Option(help="Of the sampled ones among them.")] = 0,
) -> None:
    """Report one run, finished or not, or set several runs or evaluations side by side.

    One run alone gets its report.md and curves.png, several a comparison: tables in the paper's layout (Avg@k and
    Pass@k, macro average, best in bold, ± over seeds), costs, paired tests where tasks are shared, and what was run on
    what. --html puts all of it, curves, alarms and episodes into one file. Runs that differ by seed alone are one line.
    """
    formats = [name for name, is_wanted in (("md", is_markdown), ("latex", is_latex)) if is_wanted]
    if _is_one_run(paths) and not (is_page or formats or out or labels):
        from srpo_train.reporting.run_report import write_report

        typer.echo(write_report(paths[0]))
        return
    if out and (out.suffix in _FILES or out.is_file()):
        raise ConfigError(
            f"--out {out}: expected a folder, got the name of a file; the page of --html is {PAGE_FILE} in it"
        )
    named = parse_labels(labels)
    if is_page:
        from srpo_train.reporting.page import write_page

        folder = out or (paths[0] if len(paths) == 1 else _FOLDER)
        page = write_page(
            paths,
            folder / PAGE_FILE,
            labels=named,
            with_paper=has_paper,
            axis=axis.value,
            num_episodes=num_episodes,
            seed=seed,
        )
        typer.echo(page)
    if formats or not is_page:
        from srpo_train.reporting.comparison import write_comparison

        for path in write_comparison(
            paths, out or _FOLDER, formats=formats or ["md"], labels=named, with_paper=has_paper
        ):
            typer.echo(path)


def _is_one_run(paths: list[Path]) -> bool:
    return len(paths) == 1 and (paths[0] / "recipe.toml").is_file()
