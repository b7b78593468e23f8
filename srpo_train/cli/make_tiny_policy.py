"""``srpo make-tiny-policy``: make the embedded policy from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def make_tiny_policy(
    output_dir: Annotated[Path, typer.Argument(help="New or empty directory for the checkpoint.")],
    seed: Annotated[int, typer.Option(help="Decides weights and examples.")] = 0,
) -> None:
    """Make the tiny policy that plays every role of the arithmetic team, right only part of the time."""
    from srpo_train.tiny.make import make_tiny_policy as make

    for setting, rates in make(output_dir, seed, show_progress=True)["measured"].items():
        typer.echo(f"{setting:12} " + "  ".join(f"{name} {value:.3f}" for name, value in rates.items()))
    typer.echo(f"checkpoint: {output_dir}")
