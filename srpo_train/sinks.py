"""Views of the metrics: terminal, TensorBoard, Weights & Biases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from srpo_envs.errors import MissingExtraError
from srpo_train.config import Recipe
from srpo_train.metrics import MetricLogger, Sink, Values

logger = logging.getLogger(__name__)

_HEADER_EVERY = 20


def open_metrics(recipe: Recipe, run_dir: Path, resume_step: int | None = None, *, watcher: Sink) -> MetricLogger:
    """Return the logger of a run with the sinks its recipe asks for.

    Args:
        recipe: Its ``log`` section is used.
        run_dir: Directory of the run.
        resume_step: Step of the checkpoint the run goes on from; None at the beginning.
        watcher: Where progress is shown.

    Raises:
        MissingExtraError: W&B or TensorBoard is asked for and not installed.
    """
    sinks: list[Sink] = [watcher]
    if recipe.log.tensorboard:
        sinks.append(TensorBoardSink(run_dir / "tensorboard", resume_step))
    if recipe.log.wandb:
        sinks.append(WandbSink(recipe, run_dir))
    return MetricLogger(run_dir, resume_step, sinks)


class TensorBoardSink:
    """Scalars for TensorBoard; points of a killed run that come after its checkpoint are purged on resume."""

    def __init__(self, log_dir: Path, resume_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "train") from error
        self._writer: Any = SummaryWriter(str(log_dir), purge_step=0 if resume_step is None else resume_step + 1)

    def write(self, step: int, values: Values) -> None:
        """Add one point per metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def warn(self, message: str) -> None:
        """Curves show no warnings."""

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbSink:
    """Scalars for Weights & Biases; a resumed run continues under its own id."""

    def __init__(self, recipe: Recipe, run_dir: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb", "wandb") from error
        self._run: Any = wandb.init(
            project=recipe.log.wandb_project,
            name=recipe.name,
            id=recipe.name,
            resume="allow",
            dir=str(run_dir),
            config=recipe.model_dump(mode="json"),
        )

    def write(self, step: int, values: Values) -> None:
        """Send one step."""
        self._run.log(dict(values), step=step)

    def warn(self, message: str) -> None:
        """Send an alert."""
        self._run.alert(title="srpo", text=message)

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()


# --- terminal -----------------------------------------------------------------------------------------------------


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

    def write(self, step: int, values: Values) -> None:
        """Print the row of a step and move the bar."""
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
