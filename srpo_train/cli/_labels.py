"""The option ``--label PATH=NAME`` of the commands that set runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from srpo_envs.errors import ConfigError

LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="PATH=NAME", help="Call what lies there so, instead of after its recipe; repeatable."
    ),
]


def parse_labels(texts: Sequence[str] | None) -> dict[Path, str]:
    """Return names by path.

    Raises:
        ConfigError: a text is not ``PATH=NAME``.
    """
    labels = {}
    for text in texts or ():
        path, equals, name = text.partition("=")
        if not (path and equals and name.strip()):
            raise ConfigError(f'--label {text}: expected PATH=NAME, such as --label runs/a="Dr. MAS, 3 solvers"')
        labels[Path(path)] = name.strip()
    return labels
