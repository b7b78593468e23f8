"""Speeds of a run that was trained, from what it left: metrics of every step, and its stored episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode, read_episodes
from srpo_train.metrics import read_metrics

_FEWEST_STEPS = 4
_SKIPPED = 1  # the first step warms up caches and compilers


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """What a step's time is made of, on the machine of the run.

    Example:
        ``Speeds(step_s=0.004, step_s_per_row=2e-5, update_s_per_token=1e-4)``
    """

    step_s: float
    """Seconds of a decoding step whatever its rows."""
    step_s_per_row: float
    """Seconds that every row adds."""
    update_s_per_token: float
    """Seconds of update for a token of prompt or response."""


def measured_speeds(run_dir: Path) -> Speeds:
    """Fit the speeds of a run that collected in rounds and stored the events of every step.

    The r-th events of all episodes are sampled together, so the decoding steps of a training step are the sum of the
    longest response of each round, and its row steps are its sampled tokens: two known numbers to each `generate_s`.

    Raises:
        ConfigError: it stored too few steps.
    """
    lines = {int(line["step"]): line for line in read_metrics(run_dir) if line["step"] > _SKIPPED}
    files = {int(path.stem.rpartition("-")[2]): path for path in (run_dir / "events").glob("step-*.jsonl")}
    steps = sorted(lines.keys() & files.keys())
    if len(steps) < _FEWEST_STEPS:
        raise ConfigError(
            f"{run_dir}: {len(steps)} steps with stored events, expected at least {_FEWEST_STEPS} after the first; "
            'train with log.save_events = "all"'
        )
    sizes = np.array([_sizes(list(read_episodes(files[step]))) for step in steps], dtype=np.float64)
    generate_s = np.array([lines[step]["time/generate_s"] for step in steps])
    update_s = np.array([lines[step]["time/update_s"] for step in steps])
    step_s, step_s_per_row = _fit(sizes[:, :2], generate_s)
    return Speeds(
        step_s=step_s, step_s_per_row=step_s_per_row, update_s_per_token=float(update_s.sum() / sizes[:, 2].sum())
    )


def _sizes(episodes: Sequence[Episode]) -> tuple[int, int, int]:
    """Decoding steps, sampled tokens, and tokens of all rows of a training step."""
    longest: dict[int, int] = defaultdict(int)
    num_sampled = num_prompt = 0
    for episode in episodes:
        for number, event in enumerate(episode.events):
            for member in event.members:
                longest[number] = max(longest[number], len(member.token_ids))
                num_sampled += len(member.token_ids)
                num_prompt += len(member.prompt_token_ids)
    return sum(longest.values()), num_sampled, num_sampled + num_prompt


def _fit(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Least squares with both factors at least 0; where one would not be, the other explains all."""
    (step_s, row_s), *_ = np.linalg.lstsq(sizes, seconds, rcond=None)
    if step_s >= 0 and row_s >= 0:
        return float(step_s), float(row_s)
    alone = [float(column @ seconds / (column @ column)) for column in sizes.T]
    errors = [float(((column * factor - seconds) ** 2).sum()) for column, factor in zip(sizes.T, alone, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
