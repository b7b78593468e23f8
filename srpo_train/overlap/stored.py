"""Episodes that were sampled ahead, in the folder of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from srpo_envs.errors import CheckpointError
from srpo_envs.records import read_episodes, write_episodes
from srpo_train.collect import EpisodeJob, FailedEpisode, Rollout


def write_rollout(folder: Path, name: str, rollout: Rollout) -> None:
    """Write a rollout as two files: its episodes, and what else there is to say of it."""
    write_episodes(folder / f"{name}.jsonl", rollout.episodes)
    counts = {
        "failed": [asdict(failed) for failed in rollout.failed],
        "num_stragglers": rollout.num_stragglers,
        "num_surplus": rollout.num_surplus,
        "generate_s": rollout.generate_s,
        "env_s": rollout.env_s,
        "num_retries": rollout.num_retries,
        "num_recollected": rollout.num_recollected,
    }
    write_json(folder / f"{name}.json", counts)


def read_rollout(folder: Path, name: str) -> Rollout:
    """Read what `write_rollout` wrote.

    Raises:
        CheckpointError: it is not there or not whole.
        RecordError: an episode cannot be read.
    """
    counts = read_json(folder / f"{name}.json")
    try:
        failed = tuple(FailedEpisode(**(item | {"job": EpisodeJob(**item["job"])})) for item in counts.pop("failed"))
        return Rollout(episodes=tuple(read_episodes(folder / f"{name}.jsonl")), failed=failed, **counts)
    except (KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"{folder / name}: cannot be read ({error!r}); take an earlier checkpoint") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping of plain values."""
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Raises:
        CheckpointError: it is not there or no JSON.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); take an earlier checkpoint") from error
    return value
