"""``srpo sweep``: train a grid of recipes over seeds, and write its table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from srpo_train.cli._numbers import whole_numbers

if TYPE_CHECKING:
    from srpo_train.sweep import Sweep


def sweep(
    source: Annotated[Path, typer.Argument(help="A sweep file, or a recipe.", metavar="SWEEP_OR_RECIPE")],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=VALUE,VALUE", help="Values of one key of the recipe; repeatable."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key in every cell; repeatable.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of every cell, such as 0,1,2.")] = "",
    processes: Annotated[int, typer.Option(help="Runs that train at once.")] = 0,
    out: Annotated[str, typer.Option(help="Directory of the sweep; runs/ and its file's name when left out.")] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Train only the cells whose label holds this; repeatable."),
    ] = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells with sizes, and train nothing.")
    ] = False,
) -> None:
    """Train a grid of recipes over seeds, and write results.csv and results.md.

    Whatever was killed goes on when the same command is given again. docs/sweeps.md explains sweep files.
    """
    from srpo_train.cli._grid import run_grid
    from srpo_train.sweep import check_runs, list_runs, write_results

    plan = _read(source, grid or [], changes or [], seeds=seeds, processes=processes, out=out)
    runs = list_runs(plan)
    check_runs(runs)
    run_grid(runs, out=plan.out, processes=plan.processes, only=only or [], is_dry_run=is_dry_run, write=write_results)


def _read(source: Path, grid: Sequence[str], changes: Sequence[str], *, seeds: str, processes: int, out: str) -> Sweep:
    from srpo_train.config import parse_override
    from srpo_train.sweep import load_sweep
    from srpo_train.sweep.spec import merge, nested

    given: dict[str, Any] = {}
    if seeds:
        given["seeds"] = whole_numbers("--seeds", seeds)
    if processes:
        given["processes"] = processes
    if out:
        given["out"] = out
    plan = load_sweep(source, grid, given)
    for text in changes:
        plan = plan.model_copy(update={"set": merge(plan.set, nested(*parse_override(text)))})
    return plan
