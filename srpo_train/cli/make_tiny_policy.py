"""``srpo make-tiny-policy``: make an embedded policy from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def make_tiny_policy(
    output_dir: Annotated[Path, typer.Argument(help="New or empty directory for the checkpoint.")],
    like: Annotated[
        str, typer.Option(help="Which one: tiny-team (arithmetic), tiny-searchers, tiny-workflows or tiny-coders.")
    ] = "tiny-team",
    width: Annotated[int, typer.Option(help="Hidden size; parameters grow with its square.")] = 64,
    seed: Annotated[int, typer.Option(help="Decides weights and examples.")] = 0,
) -> None:
    """Make a tiny policy that plays every role of a team, right only part of the time."""
    from srpo_envs.errors import UnknownIdError, near_miss
    from srpo_train.tiny.make import CURRICULA
    from srpo_train.tiny.make import make_tiny_policy as make

    if like not in CURRICULA:
        raise UnknownIdError(f"no tiny policy {like!r}{near_miss(like, CURRICULA)}")
    report = make(output_dir, CURRICULA[like], seed, width=width, show_progress=True)
    typer.echo(f"{report['settings']['num_parameters']:,} parameters")
    for setting, rates in report["measured"].items():
        typer.echo(f"{setting:12} " + "  ".join(f"{name} {value:.3f}" for name, value in rates.items()))
    typer.echo(f"checkpoint: {output_dir}")
