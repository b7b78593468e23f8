"""``srpo dynamics``: how training behaved, as a picture and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from srpo_train.cli._axis import Axis, AxisOption
from srpo_train.cli._labels import LabelOption, parse_labels

if TYPE_CHECKING:
    from srpo_train.reporting.tables import Table


def dynamics(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, finished or not, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("reports"),
    axis: AxisOption = Axis.STEP,
    labels: LabelOption = None,
    has_paper: Annotated[bool, typer.Option("--paper/--no-paper", help="Quote the paper's own numbers beside.")] = True,
) -> None:
    """Draw score, gradient norm, Var(L), lengths, set sizes, cost and completeness of runs over training.

    Runs that differ by seed alone are one curve, their mean with a band of one standard deviation. Writes
    dynamics.png, dynamics.csv (every step), dynamics-statistics.csv and dynamics.md (the table printed here).
    """
    from srpo_train.reporting.dynamics import write_dynamics

    table, files = write_dynamics(runs, out, axis=axis.value, labels=parse_labels(labels), with_paper=has_paper)
    _print(table)
    for file in files:
        typer.echo(file)


def _print(table: Table) -> None:
    """Show one's own runs side by side, a line for each statistic."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from srpo_train.reporting.tables import plain

    rows = table.blocks[0].rows
    shown = RichTable(box=box.SIMPLE_HEAD)
    shown.add_column("")
    for row in rows:
        shown.add_column(Text(plain(row.name)), justify="right")
    for place, heading in enumerate(table.columns):
        shown.add_row(f"{heading.group} {heading.name}".strip(), *(Text(row.cells[place].text) for row in rows))
    Console().print(shown)
