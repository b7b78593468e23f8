"""Commands that other packages bring: every entry point of the group ``srpo.commands`` names a Typer app."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable
from typing import Any

import typer

from srpo_train.cli._errors import guarded

COMMAND_GROUP = "srpo.commands"
"""In pyproject.toml: ``[project.entry-points."srpo.commands"]`` with lines ``name = "module:app"``."""


def add_plugins(app: typer.Typer) -> None:
    """Add every installed group of commands; one that cannot be loaded warns and is left out."""
    for entry in importlib.metadata.entry_points(group=COMMAND_GROUP):
        try:
            plugin: typer.Typer = entry.load()
        except (ImportError, AttributeError) as error:
            warnings.warn(f"commands {entry.name!r} = {entry.value!r} are left out: {error}", stacklevel=2)
            continue
        _guard(plugin)
        app.add_typer(plugin, name=entry.name)


def _guard(plugin: typer.Typer) -> None:
    """End every command of a plug-in like our own: one clear line and an exit code."""
    for command in plugin.registered_commands:
        callback: Callable[..., Any] | None = command.callback
        if callback is not None:
            command.callback = guarded(callback)
