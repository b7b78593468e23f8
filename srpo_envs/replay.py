"""Replay: a stored episode is rebuilt from its records alone, without engine, tools or grader.

An episode is event-sourced: task, seed, outputs and recorded calls lead to the same events, ids and rewards, or the
record is not what the workflow would have done::

    episode = next(read_episodes("runs/demo/events/step-0001.jsonl"))
    replay(episode)                                  # identical, or ReplayError naming the first difference
    env = branch(episode, num_events=2)              # a live environment, pending at the third event
    env.step(env.pending.outputs(["<verify>reject</verify>"]))
"""

from __future__ import annotations

import dataclasses

from srpo_envs.core import SetEnv
from srpo_envs.errors import ReplayError, UnknownIdError
from srpo_envs.recording import first_difference
from srpo_envs.records import Episode


def replay(episode: Episode, env: SetEnv | None = None) -> Episode:
    """Rebuild an episode and prove it identical: events, ids, observations, parser states, rewards and returns.

    Args:
        episode: The record, finished or not. Tokens, log-probabilities and timings are carried over.
        env: The environment to replay in; made from the recorded id and arguments when omitted. Its running episode is
            lost.

    Returns:
        The rebuilt episode, equal to the record (but for `env_kwargs` when `env` was built from other arguments).

    Raises:
        ReplayError: the rebuilt episode differs; names the first difference.
    """
    rebuilt = _resumed(episode, None, env, episode.episode_id).episode
    # An environment handed in is compared by what it does: one built from its class does not know its arguments.
    recorded = episode if env is None else dataclasses.replace(episode, env_kwargs=rebuilt.env_kwargs)
    if difference := first_difference(recorded, rebuilt):
        raise ReplayError(f"episode {episode.episode_id!r}: the replay differs from the record in {difference}")
    return rebuilt


def branch(episode: Episode, num_events: int, env: SetEnv | None = None, *, episode_id: str | None = None) -> SetEnv:
    """Return an environment pending at an event of a stored episode, from where it can go another way.

    The state ids up to there are those of the record, so events of several branches share their anchor state.

    Args:
        episode: The record.
        num_events: Events to keep; the environment waits for the outputs of event number `num_events`.
        env: The environment to use; made from the recorded id and arguments when omitted.
        episode_id: Name of the continuation; ``<recorded id>~<num_events>`` when omitted.

    Raises:
        ReplayError: the kept events do not replay, the episode is over after them, or `num_events` is not between 0
            and the number of recorded events.
    """
    name = episode_id or f"{episode.episode_id}~{num_events}"
    branched = _resumed(episode, num_events, env, name)
    if branched.pending is None:
        raise ReplayError(
            f"episode {episode.episode_id!r} is over after {num_events} events; branch at 0..{len(episode.events) - 1}"
        )
    return branched


def _resumed(episode: Episode, num_events: int | None, env: SetEnv | None, episode_id: str) -> SetEnv:
    chosen = env if env is not None else _make(episode)
    chosen.resume(episode, num_events, episode_id=episode_id)
    return chosen


def _make(episode: Episode) -> SetEnv:
    from srpo_envs.registry import make  # the registry knows every workflow; only a rebuild needs it

    try:
        return make(episode.env_id, **episode.env_kwargs)
    except UnknownIdError as error:
        raise ReplayError(
            f"episode {episode.episode_id!r} was recorded by {episode.env_id!r}, which is not registered; "
            f"register it, or pass env= ({error})"
        ) from error
