"""Every `srpo` command in the documentation is one that the command line takes: its commands, options and choices."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from doc_pages import blocks, pages_with

from srpo_train.cli import app

SHELL = ("bash", "console")
SRPO = typer.main.get_command(app)
REFUSED = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def commands(page: str) -> Iterator[list[str]]:
    """The arguments of every call of `srpo` on a page."""
    for block in blocks(page, *SHELL):
        for line in block.replace("\\\n", " ").split("\n"):
            for part in re.split(r"(?<=\s)\|(?=\s)|;|&&", re.sub(r"^\$ ", "", line.strip())):
                found = re.match(r"\s*(?:\S*/)?(?:srpo|torchrun .*? -m srpo_train\.cli)\s+(.*)", part)
                if found:
                    yield shlex.split(re.sub(r"\d?>\S+", "", found[1]), comments=True)


def parse(command: Any, arguments: list[str]) -> None:
    """Read arguments as the command line does, and run nothing."""
    with command.make_context(command.name, list(arguments)) as context:
        if hasattr(command, "resolve_command"):  # a group; which class that is depends on the version of typer
            _, below, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            parse(below, rest)


@pytest.mark.parametrize("page", [page for page in pages_with(*SHELL) if list(commands(page))])
def test_the_commands_of_a_page_are_taken(page: str) -> None:
    for arguments in commands(page):
        try:
            parse(SRPO, arguments)
        except REFUSED as error:
            pytest.fail(f"{page}: srpo {shlex.join(arguments)}: {error.format_message()}")


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(REFUSED):
        parse(SRPO, ["report", "a", "--format", "md"])
    with pytest.raises(REFUSED):
        parse(SRPO, ["tarin", "a"])
