"""Finding stored episodes of a run or an evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from srpo_envs.audit import episode_files
from srpo_envs.errors import RecordError, UnknownIdError, near_miss
from srpo_envs.records import Episode, read_episodes

_LOOKED_AT = 256


def stored_episodes(run_dir: Path) -> Iterator[Episode]:
    """Yield the stored episodes of a run, the newest step first, or of an evaluation.

    Raises:
        RecordError: there are none.
    """
    files = episode_files(run_dir)
    if not files:
        raise RecordError(
            f"{run_dir}: no events/*.jsonl and no samples; is it the directory of a run with log.save_events on, or of "
            "an evaluation?"
        )
    for file in reversed(files):
        yield from read_episodes(file)


def longest_episode(run_dir: Path) -> Episode:
    """Return the episode with most events among the newest, for it shows most."""
    return max(itertools.islice(stored_episodes(run_dir), _LOOKED_AT), key=lambda episode: len(episode.events))


def find_episode(run_dir: Path, episode_id: str) -> Episode:
    """Return the episode of an id.

    Raises:
        UnknownIdError: it was not stored; the message names near ids.
    """
    met = []
    for episode in stored_episodes(run_dir):
        if episode.episode_id == episode_id:
            return episode
        met.append(episode.episode_id)
    raise UnknownIdError(f"{run_dir}: no stored episode {episode_id!r}{_near(episode_id, met)}")


def _near(episode_id: str, met: list[str]) -> str:
    suggestion = near_miss(episode_id, met)
    return suggestion if suggestion.startswith("; did") else f"; stored are {len(met)}, such as {met[0]!r}"
