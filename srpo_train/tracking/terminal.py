"""Progress on the terminal: a row of numbers per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from srpo_envs.records import Episode
from srpo_train.metrics import Values

_HEADER_EVERY = 20


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the terminal table.

    Example:
        ``Column("valid", "rollout/valid_rate/", "{:.0%}")`` shows the mean over roles.
    """

    header: str
    """Shown on top."""
    name: str
    """A metric; with a slash at its end, the mean over everything below it."""
    form: str
    """Format of the value."""
    width: int = 7
    """Characters."""
    style: str = ""
    """Rich style of the value."""

    def show(self, values: Values) -> str:
        """Return the value of a step as text; empty when the step has none."""
        if not self.name.endswith("/"):
            return self.form.format(values[self.name]) if self.name in values else ""
        below = [value for name, value in values.items() if name.startswith(self.name)]
        return self.form.format(sum(below) / len(below)) if below else ""


COLUMNS: tuple[Column, ...] = (
    Column("held-out", "eval/accuracy", "{:.3f}", 8, "bold green"),
    Column("right", "rollout/accuracy", "{:.3f}", style="green"),
    Column("reward", "rollout/reward_mean", "{:.3f}"),
    Column("valid", "rollout/valid_rate/", "{:.1%}"),
    Column("mean K", "train/cardinality_mean", "{:.2f}"),
    Column("clip", "train/clip_fraction", "{:.2%}"),
    Column("|grad|", "train/grad_norm", "{:.3g}"),
    Column("entropy", "train/entropy", "{:.3f}"),
    Column("length", "rollout/response_length/", "{:.1f}"),
    Column("tok/s", "perf/tokens_per_s", "{:,.0f}"),
    Column("s/step", "time/step_s", "{:.2f}", style="dim"),
)
"""What a person watching a run wants to see, most important first; a narrow terminal loses the last ones."""


class TerminalSink:
    """A row of numbers per step; a progress bar below them where the output is a terminal, plain lines where not.

    Args:
        num_steps: Steps of the run.
        console: Where to write; standard output when omitted.
        columns: What to show.
        done_steps: Steps that an earlier part of this run has taken.
    """

    def __init__(
        self,
        num_steps: int,
        *,
        console: Console | None = None,
        columns: Sequence[Column] = COLUMNS,
        done_steps: int = 0,
    ) -> None:
        self._console = console or Console()
        self._columns = _fitting(columns, self._console.width if self._console.is_terminal else 200)
        self._num_rows = 0
        self._progress: Progress | None = None
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]training"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("[dim]left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task("training", total=num_steps, completed=done_steps)
            self._progress.start()

    def write(self, step: int, values: Values, episodes: Sequence[Episode] = ()) -> None:
        """Print the row of a step and move the bar; episodes have no place here."""
        if self._num_rows % _HEADER_EVERY == 0:
            self._print(_row("step", lambda column: column.header, self._columns, is_header=True))
        self._num_rows += 1
        self._print(_row(str(step), lambda column: column.show(values), self._columns))
        if self._progress:
            self._progress.update(self._task, completed=step)

    def warn(self, message: str) -> None:
        """Print a warning between the rows."""
        self._print(Text("warning: ", style="bold yellow") + Text(message))

    def close(self) -> None:
        """Let go of the terminal."""
        if self._progress:
            self._progress.stop()

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _row(first: str, cell: Callable[[Column], str], columns: Sequence[Column], *, is_header: bool = False) -> Text:
    row = Text(f"{first:>5}", style="bold" if is_header else "bold cyan")
    for column in columns:
        row.append("  " + cell(column).rjust(column.width), style="bold" if is_header else column.style)
    row.rstrip()
    return row


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    used = 5
    fitting = []
    for column in columns:
        used += column.width + 2
        if used > width:
            break
        fitting.append(column)
    return fitting
