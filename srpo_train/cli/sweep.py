"""``srpo sweep``: train a grid of recipes over seeds, and write its table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from srpo_envs.errors import ConfigError
from srpo_train.cli._errors import FAILED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from srpo_train.sweep import Outcome, Run, Sweep


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
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells with sizes, and train nothing.")
    ] = False,
) -> None:
    """Train a grid of recipes over seeds, and write results.csv and results.md.

    Whatever was killed goes on when the same command is given again. docs/sweeps.md explains sweep files.
    """
    from rich.console import Console

    from srpo_train.sweep import check_runs, list_runs

    plan = _read(source, grid or [], changes or [], seeds=seeds, processes=processes, out=out)
    runs = list_runs(plan)
    check_runs(runs)
    console = Console()
    if is_dry_run:
        console.print(_listing(runs))
        console.print(f"{len(runs)} runs, {plan.processes} at once, into {plan.out}", highlight=False, soft_wrap=True)
        return
    outcomes = _train(console, plan, runs)
    _report(console, plan, outcomes)
    if any(not outcome.is_finished for outcome in outcomes):
        raise typer.Exit(FAILED)


def _read(source: Path, grid: Sequence[str], changes: Sequence[str], *, seeds: str, processes: int, out: str) -> Sweep:
    from srpo_train.config import parse_override
    from srpo_train.sweep import load_sweep
    from srpo_train.sweep.spec import merge, nested

    given: dict[str, Any] = {}
    if seeds:
        given["seeds"] = _numbers(seeds)
    if processes:
        given["processes"] = processes
    if out:
        given["out"] = out
    plan = load_sweep(source, grid, given)
    for text in changes:
        plan = plan.model_copy(update={"set": merge(plan.set, nested(*parse_override(text)))})
    return plan


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--seeds {text}: expected integers with commas between them, such as 0,1,2") from None


def _train(console: Console, plan: Sweep, runs: Sequence[Run]) -> list[Outcome]:
    from srpo_train.cli._sweep_progress import SweepProgress
    from srpo_train.sweep import claim, run_all

    with claim(plan.out, runs), SweepProgress(console, runs, plan.processes) as progress:
        return run_all(runs, processes=plan.processes, watch=progress)


def _report(console: Console, plan: Sweep, outcomes: Sequence[Outcome]) -> None:
    from srpo_train.sweep import write_results

    failed = [outcome for outcome in outcomes if not outcome.is_finished]
    for outcome in failed:
        console.print(f"\nfailed: {outcome.run.name}: {outcome.reason}", style="bold red", markup=False, soft_wrap=True)
        console.print(outcome.tail, markup=False, highlight=False, soft_wrap=True)
        console.print(f"log: {outcome.run.run_dir / 'train.log'}", markup=False, highlight=False, soft_wrap=True)
    if len(failed) < len(outcomes):
        typer.echo(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} runs finished")
        typer.echo(f"table: {write_results(plan.out)}")


def _listing(runs: Sequence[Run]) -> Table:
    from rich.markup import escape
    from rich.table import Column, Table

    from srpo_train.cli._sweep_progress import duration, seconds_left
    from srpo_train.plan import make_plan
    from srpo_train.sweep.cells import standing

    table = Table(
        "cell",
        "seeds",
        *(Column(name, justify="right") for name in ("steps", "episodes a step", "tokens a step", "trained", "left")),
        box=None,
        header_style="dim",
        pad_edge=False,
    )
    by_cell = {run.cell.folder: [other for other in runs if other.cell == run.cell] for run in runs}
    for members in by_cell.values():
        plan, train = make_plan(members[0].recipe), members[0].recipe.train
        trained = [policy.num_trained for policy in plan.policies]
        left = seconds_left([standing(run.recipe) for run in members])
        table.add_row(
            escape(members[0].cell.label),
            ", ".join(str(run.recipe.seed) for run in members),
            f"{train.num_steps:,}" + (f" or {train.token_budget:,} tokens" if train.token_budget else ""),
            f"{plan.step.num_episodes:,}",
            f"at most {plan.step.max_new_tokens:,}",
            "unknown" if None in trained else f"{sum(filter(None, trained)):,}",
            "unknown" if left is None else duration(left),
        )
    return table
