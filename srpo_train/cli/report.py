"""``srpo report``: write the report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="Directory of a run, finished or not.")]) -> None:
    """Write curves.png and report.md of a run, also while it is still training."""
    from srpo_train.reporting.run_report import write_report

    typer.echo(write_report(run))
