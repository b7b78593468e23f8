"""``srpo report``: the report of a run, or several runs and evaluations side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srpo_train.cli._labels import LabelOption, parse_labels


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_EVALUATION...", help="Runs, evaluation directories, or folders of them."),
    ],
    formats: Annotated[str, typer.Option("--format", help="Of a comparison: md, latex, html, or several.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for a comparison; reports/ when left out.")] = None,
    labels: LabelOption = None,
    has_paper: Annotated[bool, typer.Option("--paper/--no-paper", help="Quote the paper's own numbers beside.")] = True,
) -> None:
    """Write curves.png and report.md of one run, finished or not; set several runs or evaluations side by side.

    A comparison has tables in the paper's layout (Avg@k and Pass@k, macro average, best in bold, ± over seeds), costs,
    paired tests where tasks are shared, and what was run on what. Runs that differ by seed alone are one line.
    """
    if _is_one_run(paths) and not (formats or out or labels):
        from srpo_train.reporting.run_report import write_report

        typer.echo(write_report(paths[0]))
        return
    from srpo_train.reporting.comparison import write_comparison

    names = [name.strip() for name in (formats or "md").split(",")]
    written = write_comparison(
        paths, out or Path("reports"), formats=names, labels=parse_labels(labels), with_paper=has_paper
    )
    for path in written:
        typer.echo(path)


def _is_one_run(paths: list[Path]) -> bool:
    return len(paths) == 1 and (paths[0] / "recipe.toml").is_file()
