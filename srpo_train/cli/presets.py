"""``srpo presets``: the methods that can be compared, and what each sets."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from srpo_train.objective import Objective

_TEAMS = {
    "any": "one, shared or per role",
    "one agent": "a workflow of one agent, such as ArithmeticSingleAgent-v0",
    "shared": 'one policy, and roles = {"*" = "team"}',
    "per role": "a policy for each role of the workflow",
}


def presets(name: Annotated[str, typer.Argument(metavar="[PRESET]", help="Show all that this one sets.")] = "") -> None:
    """List the methods by the names researchers know, or show one preset with its formula and every choice."""
    from srpo_train.objective import METHODS, PRESETS, preset

    console = Console()
    if name:
        _show_one(console, preset(name))
        return
    table = Table(
        Column("method", no_wrap=True),
        Column("preset", no_wrap=True),
        "what it sets, and its source",
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    for method in METHODS:
        table.add_row(method.name, f"[cyan]{method.preset}", escape(_in_a_line(PRESETS[method.preset], method.source)))
    console.print(table)
    console.print("\n`srpo presets PRESET` shows source, formula and differences; a recipe sets objective.preset.")


def _in_a_line(objective: Objective, source: str) -> str:
    from srpo_train.objective import describe

    words = describe(objective)
    return (
        f"{words['advantage']} within {words['compared within']}; ratio of {words['ratio of']}; "
        f"clip {words['clip']}; mean over {words['mean over']}; {source}"
    )


def _show_one(console: Console, objective: Objective) -> None:
    from srpo_train.objective import METHODS

    methods = [method for method in METHODS if method.preset == objective.name]
    console.print(f"[bold]{objective.name}[/bold]  {escape(methods[0].source)}\n")
    console.print(f"{escape(methods[0].formula)}\n")
    console.print(f"differs from its source: {escape(methods[0].differs)}\n")
    methods_table = Table("method", "policies in the recipe", box=None, header_style="bold", pad_edge=False)
    for method in methods:
        methods_table.add_row(method.name, escape(_TEAMS[method.team]))
    console.print(methods_table)
    console.print()
    table = Table("objective.*", "value", box=None, header_style="bold", pad_edge=False)
    for record in (objective.advantage, objective):
        for item in fields(record):
            if item.name not in ("name", "advantage"):
                table.add_row(f"[cyan]{item.name}", escape(str(getattr(record, item.name))))
    console.print(table)
