"""How ``srpo sweep`` shows where the runs stand: one line a cell, for as long as it trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from srpo_train.cli._text import shown
from srpo_train.sweep.cells import Run, Standing, standing

if TYPE_CHECKING:
    from srpo_train.sweep.running import State

_MARKS: dict[State, str] = {
    "waiting": "[dim]·[/]",
    "training": "[bold cyan]>[/]",
    "finished": "[green]✓[/]",
    "failed": "[bold red]✗[/]",
}
_LOOK_S = 2.0


class SweepProgress:
    """A table that is kept up to date on a terminal; elsewhere a line whenever a run begins or ends.

    Args:
        console: Where to write.
        runs: All runs of the sweep.
        processes: Runs that train at once.
    """

    def __init__(self, console: Console, runs: Sequence[Run], processes: int) -> None:
        self._console = console
        self._runs = runs
        self._processes = processes
        self._states: dict[str, State] = {}
        self._looked_at = float("-inf")
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, states: Mapping[str, State]) -> None:
        """Take the states of the runs."""
        changed = {name: state for name, state in states.items() if self._states.get(name, "waiting") != state}
        self._states = dict(states)
        if self._live is None:
            for name, state in changed.items():
                self._console.print(shown(f"{state}: {name}"), soft_wrap=True)
        elif changed or time.monotonic() - self._looked_at > _LOOK_S:
            self._looked_at = time.monotonic()
            found = {run.name: standing(run.recipe) for run in self._runs}
            self._live.update(status_table(self._runs, states, found, self._processes), refresh=True)


def status_table(
    runs: Sequence[Run], states: Mapping[str, State], found: Mapping[str, Standing], processes: int
) -> Table:
    """Return a line for each cell, and one for all of them."""
    table = Table(
        "cell",
        "seeds",
        Column("", width=20),
        Column("steps", justify="right"),
        Column("held-out", justify="right"),
        Column("left", justify="right"),
        box=None,
        header_style="dim",
        pad_edge=False,
    )
    for label in dict.fromkeys(run.cell.label for run in runs):
        members = [run for run in runs if run.cell.label == label]
        table.add_row(shown(label), *_entries(members, states, found, processes=1))
    table.add_row("[bold]all[/]", "", *_entries(runs, states, found, processes)[1:])
    return table


def _entries(
    runs: Sequence[Run], states: Mapping[str, State], found: Mapping[str, Standing], processes: int
) -> tuple[str, ProgressBar, str, str, str]:
    standings = [found[run.name] for run in runs]
    accuracy = [standing.accuracy for standing in standings if standing.accuracy is not None]
    left = seconds_left(standings)
    return (
        "".join(_MARKS[states.get(run.name, "waiting")] for run in runs),
        ProgressBar(total=float(len(runs)), completed=sum(standing.share for standing in standings), width=20),
        f"{sum(standing.num_steps for standing in standings):,}",
        f"{sum(accuracy) / len(accuracy):.3f}" if accuracy else "",
        "" if left is None else duration(left / processes),
    )


def seconds_left(standings: Sequence[Standing]) -> float | None:
    """Return how long the rest would take one process at the pace so far; None before there is a pace."""
    done = sum(standing.share for standing in standings)
    spent = sum(standing.seconds for standing in standings)
    return spent / done * (len(standings) - done) if done and spent else None


def duration(seconds: float) -> str:
    """Write a duration.

    Example:
        >>> duration(3725)
        '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
