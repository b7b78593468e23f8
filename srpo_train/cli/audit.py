"""``srpo audit``: prove that the stored events of a run are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srpo_train.cli._errors import FAILED


def audit(
    run: Annotated[Path, typer.Argument(help="Directory of a run or of an evaluation.")],
    is_replaying: Annotated[bool, typer.Option("--replay", help="Also rebuild every episode and compare.")] = False,
    has_table: Annotated[bool, typer.Option("--table", help="Show one episode event by event.")] = False,
    episode_id: Annotated[str, typer.Option("--episode", help="The episode to show; the longest when omitted.")] = "",
) -> None:
    """Check every stored event of a run: members, cardinality, versions, tokens, states, rewards and returns."""
    from srpo_envs.audit import audit_run, format_event_table
    from srpo_train.cli._episodes import find_episode, longest_episode

    if has_table or episode_id:
        episode = find_episode(run, episode_id) if episode_id else longest_episode(run)
        typer.echo(f"episode {episode.episode_id}, task {episode.task_id}, team reward {episode.reward:g}\n")
        typer.echo(format_event_table(episode) + "\n")
    report = audit_run(run, replay=is_replaying)
    typer.echo(report.summary())
    if not report.is_ok:
        raise typer.Exit(FAILED)
