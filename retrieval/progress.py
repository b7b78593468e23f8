"""How a build says how far it is, and a bar for terminals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

OnProgress = Callable[[str, int, int | None], None]
"""Called with the name of a stage, how many of its items are done, and of how many, None where that is not known."""


@contextlib.contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """Draw a bar for every stage on standard error while the body runs.

    Yields:
        The callback for a build.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def on_progress(stage: str, num_done: int, num_total: int | None) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=num_total)
            progress.update(bars[stage], completed=num_done, total=num_total)

        yield on_progress
