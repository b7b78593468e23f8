"""The ends of episodes: who is told of them, and how they become what a collection brings back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from srpo_envs.errors import NoEpisodeError
from srpo_envs.records import Episode
from srpo_train.collect.jobs import EpisodeJob, FailedEpisode, OnEnd, Rollout


class Ends(Protocol):
    """Told of each episode once, when it has ended."""

    def finished(self, job: EpisodeJob, episode: Episode) -> None:
        """It came to its end."""
        ...

    def failed(self, failed: FailedEpisode) -> None:
        """It was dropped."""
        ...

    def given_up(self, job: EpisodeJob) -> None:
        """Its over-sampled group was complete without it."""
        ...


class Tally:
    """Keeps the ends of a fixed list of jobs.

    Args:
        jobs: With distinct ids.
        on_end: Told of each episode as it finishes or is dropped.

    Raises:
        ValueError: two jobs share an id.
    """

    def __init__(self, jobs: Sequence[EpisodeJob], on_end: OnEnd | None = None) -> None:
        if len({job.episode_id for job in jobs}) != len(jobs):
            raise ValueError("jobs: two jobs share an episode_id; ids must be unique within a collection")
        self._jobs = jobs
        self._on_end = on_end
        self._finished: dict[str, Episode] = {}
        self._failed: dict[str, FailedEpisode] = {}
        self._num_surplus = 0

    @property
    def num_done(self) -> int:
        """Episodes that have ended, in whatever way."""
        return len(self._finished) + len(self._failed) + self._num_surplus

    def finished(self, job: EpisodeJob, episode: Episode) -> None:
        """Keep an episode."""
        self._finished[job.episode_id] = episode
        if self._on_end:
            self._on_end(episode)

    def failed(self, failed: FailedEpisode) -> None:
        """Keep what is known of one that was dropped."""
        self._failed[failed.job.episode_id] = failed
        if self._on_end:
            self._on_end(failed)

    def given_up(self, job: EpisodeJob) -> None:
        """Count one that was not needed."""
        self._num_surplus += 1

    def rollout(self, *, num_stragglers: int, generate_s: float, env_s: float, num_retries: int = 0) -> Rollout:
        """Return what came of the jobs.

        Raises:
            NoEpisodeError: not one episode came through; carries the first reason.
        """
        if self._jobs and not self._finished:
            first = self._failed[self._jobs[0].episode_id]
            raise NoEpisodeError(f"all {len(self._jobs)} episodes failed; the first: {first.reason}")
        ids = [job.episode_id for job in self._jobs]
        return Rollout(
            episodes=tuple(self._finished[name] for name in ids if name in self._finished),
            failed=tuple(self._failed[name] for name in ids if name in self._failed),
            num_stragglers=num_stragglers,
            num_surplus=self._num_surplus,
            generate_s=generate_s,
            env_s=env_s,
            num_retries=num_retries,
        )
