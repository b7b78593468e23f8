"""``srpo trace``: where the time of a traced step went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from srpo_train.cli._text import shown


def trace(
    run: Annotated[Path, typer.Argument(help="Directory of a run, or one trace file.")],
    step: Annotated[int | None, typer.Option(help="Which step; the newest that was traced by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw it into this picture (.png, .svg, .pdf).")] = None,
) -> None:
    """Show what every rank, engine and environment worker did in a step that was traced (`log.trace_steps`)."""
    from srpo_train.throughput.picture import draw_trace
    from srpo_train.throughput.trace import find_trace, read_trace, time_use

    path = run if run.is_file() else find_trace(run, step)
    document = read_trace(path)
    uses = time_use(document)
    whole_s = max(use.total_s / use.num_calls for use in uses)
    table = Table("who", "what", box=None, header_style="bold", pad_edge=False)
    for heading in ("calls", "seconds", "own seconds", "of the step"):
        table.add_column(heading, justify="right")
    for use in uses:
        numbers = (f"{use.num_calls}", f"{use.total_s:.3f}", f"{use.own_s:.3f}", f"{use.total_s / whole_s:.1%}")
        table.add_row(shown(use.track), shown(use.name), *numbers)
    console = Console()
    console.print(table)
    if out:
        draw_trace(document, out)
    console.print(shown(f"{path} opens in https://ui.perfetto.dev"), soft_wrap=True)
