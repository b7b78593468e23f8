"""What commands that train many runs share: listing cells, training, telling what failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from srpo_envs.errors import ConfigError
from srpo_train.cli._errors import FAILED
from srpo_train.cli._text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from srpo_train.sweep import Outcome, Run


def run_grid(
    runs: Sequence[Run],
    *,
    out: str | Path,
    processes: int,
    only: Sequence[str],
    is_dry_run: bool,
    write: Callable[[str | Path], Path],
) -> None:
    """Train the runs below a directory and write their table, or list them.

    Args:
        runs: All runs of the grid.
        out: Their directory.
        processes: How many train at once.
        only: Texts; where there are any, cells whose label holds none of them are left for another time.
        is_dry_run: List, and train nothing.
        write: Writes the table of what is finished below a directory, and returns its path.

    Raises:
        ConfigError: `only` leaves nothing.
        typer.Exit: a run failed.
    """
    from rich.console import Console

    console = Console()
    chosen = _chosen(runs, only)
    if is_dry_run:
        console.print(list_cells(chosen))
        console.print(shown(f"{len(chosen)} runs, {processes} at once, into {out}"), soft_wrap=True)
        return
    outcomes = train_all(console, out, runs, chosen, processes)
    if report_failures(console, outcomes) < len(outcomes):
        typer.echo(f"table: {write(out)}")
    if any(not outcome.is_finished for outcome in outcomes):
        raise typer.Exit(FAILED)


def _chosen(runs: Sequence[Run], only: Sequence[str]) -> Sequence[Run]:
    if not only:
        return runs
    chosen = [run for run in runs if any(text.casefold() in run.cell.label.casefold() for text in only)]
    if not chosen:
        labels = dict.fromkeys(run.cell.label for run in runs)
        raise ConfigError(f"--only {' '.join(only)}: no cell has such a label; they are {'; '.join(labels)}")
    return chosen


def train_all(
    console: Console, out: str | Path, runs: Sequence[Run], chosen: Sequence[Run], processes: int
) -> list[Outcome]:
    """Train the chosen ones of all runs below a directory, with a line for each cell.

    Raises:
        ConfigError: another process is training there, or a run was begun with another recipe.
    """
    from srpo_train.cli._sweep_progress import SweepProgress
    from srpo_train.sweep import claim, run_all

    with claim(out, runs), SweepProgress(console, chosen, processes) as progress:
        return run_all(chosen, processes=processes, watch=progress)


def report_failures(console: Console, outcomes: Sequence[Outcome]) -> int:
    """Show what failed with the end of its log, say how many finished, and return the number of failures."""
    failed = [outcome for outcome in outcomes if not outcome.is_finished]
    for outcome in failed:
        console.print(shown(f"\nfailed: {outcome.run.name}: {outcome.reason}", "bold red"), soft_wrap=True)
        console.print(shown(outcome.tail), soft_wrap=True)
        console.print(shown(f"log: {outcome.run.run_dir / 'train.log'}"), soft_wrap=True)
    if len(failed) < len(outcomes):
        typer.echo(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} runs finished")
    return len(failed)


def list_cells(runs: Sequence[Run]) -> Table:
    """Return a line for each cell: its seeds, length, size of a step, what is trained, and what is left of it."""
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
            shown(members[0].cell.label),
            ", ".join(str(run.recipe.seed) for run in members),
            f"{train.num_steps:,}" + (f" or {train.token_budget:,} tokens" if train.token_budget else ""),
            f"{plan.step.num_episodes:,}",
            f"at most {plan.step.max_new_tokens:,}",
            "unknown" if None in trained else f"{sum(filter(None, trained)):,}",
            "unknown" if left is None else duration(left),
        )
    return table
