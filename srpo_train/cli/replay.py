"""``srpo replay``: show a stored episode, prove that it replays, or go another way from one of its events."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from srpo_envs.errors import ConfigError


def replay(
    run: Annotated[Path, typer.Argument(help="Directory of a run or of an evaluation.")],
    episode_id: Annotated[str, typer.Option("--episode", help="Episode to replay; the longest when omitted.")] = "",
    branch: Annotated[int, typer.Option(help="Keep this many events and play on from there.")] = -1,
    policy: Annotated[str, typer.Option(metavar="RUN_OR_MODEL", help="Who plays on; you, when omitted.")] = "",
    seed: Annotated[int, typer.Option(help="Decides the tokens that policies sample.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, help="Of the policies; 0 takes the most likely token.")] = 1.0,
) -> None:
    """Rebuild a stored episode from its records alone, without engine, tools or grader, and show it.

    With --branch N the first N events are kept and the rest is played anew, by hand or by --policy.
    """
    from srpo_envs.replay import branch as branch_at
    from srpo_envs.replay import replay as rebuild
    from srpo_train.cli._episodes import find_episode, longest_episode
    from srpo_train.cli._stage import perform, show_end, show_event
    from srpo_train.cli.play import choose_players

    console = Console()
    episode = find_episode(run, episode_id) if episode_id else longest_episode(run)
    if branch > len(episode.events):
        raise ConfigError(f"--branch {branch}: episode {episode.episode_id!r} has {len(episode.events)} events")
    if branch >= 0:
        env = branch_at(episode, branch)
        for event in env.episode.events:
            show_event(console, event)
        with choose_players(console, env, policy, [], seed, temperature) as players:
            perform(console, env, players)
        return
    for event in rebuild(episode).events:
        show_event(console, event)
    show_end(console, episode)
    console.print("\nthe replay is identical to the record", style="green")
