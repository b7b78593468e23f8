"""``srpo study``: when training a team pays, over workflows, tasks, ways to share policies, models and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from srpo_train.cli._numbers import whole_numbers


def study(
    source: Annotated[Path, typer.Argument(help="A study file, such as studies/tiny.toml.", metavar="STUDY")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key in every run; repeatable.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of every cell, such as 0,1,2.")] = "",
    processes: Annotated[int, typer.Option(help="Runs that train at once.")] = 0,
    out: Annotated[str, typer.Option(help="Directory of the study; runs/ and its file's name when left out.")] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Train only the cells whose label holds this; repeatable."),
    ] = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells with sizes, and train nothing.")
    ] = False,
) -> None:
    """Train every cell of a study and write study.md and study.png.

    Whatever was killed goes on when the same command is given again. docs/study.md explains study files.
    """
    from srpo_train.cli._grid import run_grid
    from srpo_train.config import parse_override
    from srpo_train.study import list_study_runs, load_study, write_study
    from srpo_train.sweep import check_runs
    from srpo_train.sweep.spec import merge, nested

    given: dict[str, Any] = {"seeds": whole_numbers("--seeds", seeds)} if seeds else {}
    given |= {name: value for name, value in {"processes": processes, "out": out}.items() if value}
    plan = load_study(source, given)
    for text in changes or []:
        plan = plan.model_copy(update={"set": merge(plan.set, nested(*parse_override(text)))})
    runs = list_study_runs(plan)
    check_runs(runs)
    run_grid(runs, out=plan.out, processes=plan.processes, only=only or [], is_dry_run=is_dry_run, write=write_study)
