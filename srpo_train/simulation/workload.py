"""What has to be sampled: episodes as sequences of events, drawn from given distributions or from a run's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from srpo_envs.audit import episode_files
from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode, Event, read_episodes


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedEvent:
    """One active set: requests that are sampled at once, and what the environment does with them.

    Example:
        ``SimulatedEvent(num_prompt_tokens=(120, 120), num_tokens=(310, 95), env_s=0.4)`` has two members.
    """

    num_prompt_tokens: tuple[int, ...]
    """Of each member."""
    num_tokens: tuple[int, ...]
    """Sampled tokens of each member."""
    env_s: float
    """Seconds that the environment then takes, its tools included."""


SimulatedEpisode = tuple[SimulatedEvent, ...]
"""Its events, one after the other."""


class Workload(Protocol):
    """Where episodes come from."""

    def draw(self, rng: np.random.Generator) -> SimulatedEpisode:
        """Return an episode."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnWorkload:
    """Episodes of one shape with log-normal lengths and latencies.

    Example:
        ``DrawnWorkload(cardinalities=(3, 1, 1), prompt_tokens=400, median_tokens=800, sigma_tokens=1.0,
        max_tokens=8192, median_env_s=0.5, sigma_env=0.8)``: three drafts, a verdict and an answer.
    """

    cardinalities: tuple[int, ...]
    """K of each event."""
    prompt_tokens: int
    """Tokens of every prompt."""
    median_tokens: float
    """Sampled tokens that half of the responses stay below."""
    sigma_tokens: float
    """Standard deviation of the logarithm of the lengths."""
    max_tokens: int
    """Limit of a response."""
    median_env_s: float
    """Seconds that half of the environment's moves take at most."""
    sigma_env: float
    """Standard deviation of their logarithm."""

    def draw(self, rng: np.random.Generator) -> SimulatedEpisode:
        """Return an episode."""
        return tuple(self._event(cardinality, rng) for cardinality in self.cardinalities)

    def _event(self, cardinality: int, rng: np.random.Generator) -> SimulatedEvent:
        lengths = self.median_tokens * np.exp(self.sigma_tokens * rng.standard_normal(cardinality))
        return SimulatedEvent(
            num_prompt_tokens=(self.prompt_tokens,) * cardinality,
            num_tokens=tuple(int(length) for length in np.clip(np.rint(lengths), 1, self.max_tokens)),
            env_s=float(self.median_env_s * np.exp(self.sigma_env * rng.standard_normal())),
        )


class RecordedWorkload:
    """Whole episodes of a run, drawn with replacement: what goes together in them stays together.

    The environment's time is that of the tools and graders as recorded; its own arithmetic is not in the records.

    Args:
        episodes: At least one.

    Raises:
        ConfigError: there is none.
    """

    def __init__(self, episodes: Sequence[SimulatedEpisode]) -> None:
        if not episodes:
            raise ConfigError("simulation: the run stored no episodes; train with log.save_events = 'last' or 'all'")
        self._episodes = tuple(episodes)

    @classmethod
    def of_run(cls, run_dir: Path) -> RecordedWorkload:
        """Read the stored episodes of a run.

        Raises:
            ConfigError: it stored none.
            RecordError: a file cannot be read.
        """
        return cls([_measured(episode) for file in episode_files(run_dir) for episode in read_episodes(file)])

    def draw(self, rng: np.random.Generator) -> SimulatedEpisode:
        """Return an episode."""
        return self._episodes[rng.integers(len(self._episodes))]


def _measured(episode: Episode) -> SimulatedEpisode:
    return tuple(_measured_event(event) for event in episode.events)


def _measured_event(event: Event) -> SimulatedEvent:
    return SimulatedEvent(
        num_prompt_tokens=tuple(len(member.prompt_token_ids) for member in event.members),
        num_tokens=tuple(sum(member.token_mask) for member in event.members),
        env_s=sum(call.duration_s for call in event.tool_calls),
    )
