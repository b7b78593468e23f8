"""``srpo alarms``: judge a run, live or finished, by the rules that watch over training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from srpo_train.cli._text import shown


def alarms(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another threshold, as in [alarms] of a recipe; repeatable."),
    ] = None,
) -> None:
    """Show when each alarm was raised in runs that are stored, whatever it did then."""
    from srpo_envs.errors import RecordError
    from srpo_train.alarms import Alarms
    from srpo_train.config import load_recipe
    from srpo_train.metrics import read_metrics
    from srpo_train.run_dir import RECIPE_FILE

    console = Console()
    for run in runs:
        settings = [text if text.startswith("alarms.") else f"alarms.{text}" for text in overrides or []]
        watch = Alarms(load_recipe(run / RECIPE_FILE, settings).alarms)
        lines = read_metrics(run)
        if not lines:
            raise RecordError(f"{run}: no metrics to judge yet; train first")
        found = [(int(line["step"]), alarm) for line in lines for alarm in watch.check(line)]
        steps = f"{int(lines[-1]['step'])} steps"
        told = f": {len(found) or 'no'} alarm{'s' * (len(found) != 1)} in {steps}"
        console.print(shown(run, "bold") + shown(told), soft_wrap=True)
        if found:
            table = Table("step", "alarm", "role", "what was seen", box=None, header_style="bold", pad_edge=False)
            for step, alarm in found:
                table.add_row(str(step), *map(shown, (alarm.name, alarm.subject, alarm.message)))
            console.print(table)
