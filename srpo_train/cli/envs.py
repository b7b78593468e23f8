"""``srpo envs``: the registered environments and their arguments."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table


def envs(
    env_id: Annotated[str, typer.Argument(metavar="[ID]", help="Show the arguments of this one.")] = "",
) -> None:
    """List the environments, or show one with its arguments and roles."""
    import srpo_envs

    console = Console()
    if env_id:
        _show_one(console, srpo_envs.spec(env_id))
        return
    table = Table(Column("id", no_wrap=True), "arguments", box=None, header_style="bold", pad_edge=False)
    for known in srpo_envs.list_envs():
        table.add_row(f"[cyan]{known}", ", ".join(srpo_envs.spec(known).arguments()))
    console.print(table)


def _show_one(console: Console, spec: Any) -> None:
    table = Table("argument", "type", "default", box=None, header_style="bold", pad_edge=False)
    for name, parameter in spec.arguments().items():
        default = "required" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        default = repr(spec.kwargs[name]) if name in spec.kwargs else default
        table.add_row(f"[cyan]{name}", escape(_type_name(parameter)), escape(default))
    console.print(f"[bold]{spec.id}[/bold]\n")
    console.print(table)
    roles = Table("role", "seats", "new tokens", "penalty", box=None, header_style="bold", pad_edge=False)
    for role in spec.make().roles.values():
        roles.add_row(f"[cyan]{role.name}", str(role.seats), str(role.max_new_tokens), f"{role.invalid_penalty:g}")
    console.print()
    console.print(roles)


def _type_name(parameter: inspect.Parameter) -> str:
    """The annotation of an argument, or the type of its default where it has none."""
    if parameter.annotation is not inspect.Parameter.empty:
        return str(parameter.annotation)
    return "-" if parameter.default in (inspect.Parameter.empty, None) else type(parameter.default).__name__
