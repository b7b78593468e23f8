"""What a collection is asked for and what it brings back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from srpo_envs.records import Episode


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeJob:
    """One episode to collect."""

    episode_id: str
    """Unique within the run; also decides the sampling seeds of all its responses."""
    group_id: str
    """Rollouts of one prompt share it."""
    task_index: int
    """Which task of the environment."""
    env_seed: int
    """Seed of the environment's own randomness; a group shares it, so that its members face the same world."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedEpisode:
    """An episode that was dropped, with the reason."""

    job: EpisodeJob
    """What was asked for."""
    reason: str
    """What went wrong, in one line."""
    num_events: int
    """Events that had been completed."""
    is_unanswerable: bool = False
    """The team brought itself where no policy can answer, such as a prompt beyond the context, or answered beyond its
    budget; not bad surroundings."""
    is_expired: bool = False
    """A response, a step of the environment or the whole episode ran into its deadline."""


OnEnd = Callable[[Episode | FailedEpisode], None]
"""Told of each episode when it has ended, in whatever way; for what must be kept as it comes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """What one collection brought back."""

    episodes: tuple[Episode, ...]
    """Finished episodes in job order."""
    failed: tuple[FailedEpisode, ...]
    """Dropped episodes in job order."""
    num_stragglers: int
    """Environment steps that missed their round; 0 where there are no rounds."""
    num_surplus: int
    """Episodes of over-sampled groups that were given up, or not begun, because their group was complete."""
    generate_s: float
    """Seconds spent generating."""
    env_s: float
    """Seconds in which there was nothing to generate, because every episode waited for its environment."""
    num_retries: int = 0
    """Environment steps made again because their surroundings failed."""
    num_recollected: int = 0
    """Episodes begun again because not one of their collection had come through."""


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Return several rollouts, collected one after the other, as one."""
    return Rollout(
        episodes=tuple(episode for rollout in rollouts for episode in rollout.episodes),
        failed=tuple(failed for rollout in rollouts for failed in rollout.failed),
        num_stragglers=sum(rollout.num_stragglers for rollout in rollouts),
        num_surplus=sum(rollout.num_surplus for rollout in rollouts),
        generate_s=sum(rollout.generate_s for rollout in rollouts),
        env_s=sum(rollout.env_s for rollout in rollouts),
        num_retries=sum(rollout.num_retries for rollout in rollouts),
        num_recollected=sum(rollout.num_recollected for rollout in rollouts),
    )
