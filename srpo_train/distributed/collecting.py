"""Rollouts on many ranks: each collects whole groups with its own engines, and all get all episodes.

What an episode samples depends on its id alone, so it does not matter which rank collects it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from srpo_envs.errors import NoEpisodeError
from srpo_envs.records import Episode
from srpo_train.collect import Collector, EpisodeJob, FailedEpisode, Rollout
from srpo_train.distributed.ranks import Ranks
from srpo_train.engines.base import Sampling


class RankCollector:
    """A collector whose jobs are dealt to ranks; each call is made by every rank with the same arguments.

    Args:
        collector: This rank's own; None for a rank that leaves collecting to the others.
        ranks: The processes.
        num_collecting: How many of them collect, from rank 0 on.
    """

    def __init__(self, collector: Collector | None, ranks: Ranks, *, num_collecting: int) -> None:
        self._collector = collector
        self._ranks = ranks
        self._num_collecting = num_collecting

    def collect(
        self,
        jobs: Sequence[EpisodeJob],
        sampling: Sampling | Mapping[str, Sampling],
        on_progress: Callable[[int, int], None] | None = None,
        *,
        keep_per_group: int | None = None,
    ) -> Rollout:
        """Run every job to its end somewhere, and return on every rank all episodes in job order.

        For arguments and errors see `Collector.collect`. Progress is that of this rank's own jobs, times are those of
        the slowest rank.
        """
        dealt = deal_jobs(jobs, self._num_collecting)
        mine = dealt[self._ranks.rank] if self._ranks.rank < self._num_collecting else []
        rollout = self._collect(mine, sampling, on_progress, keep_per_group) if mine else _NOTHING
        return _merge(jobs, self._ranks.gather(rollout))

    def _collect(
        self,
        jobs: Sequence[EpisodeJob],
        sampling: Sampling | Mapping[str, Sampling],
        on_progress: Callable[[int, int], None] | None,
        keep_per_group: int | None,
    ) -> Rollout:
        """Collect this rank's jobs; that nothing came through is an error only if it is so everywhere."""
        assert self._collector is not None
        ended: list[Episode | FailedEpisode] = []
        try:
            return self._collector.collect(
                jobs, sampling, on_progress, keep_per_group=keep_per_group, on_end=ended.append
            )
        except NoEpisodeError:
            return replace(_NOTHING, failed=tuple(item for item in ended if isinstance(item, FailedEpisode)))


_NOTHING = Rollout(episodes=(), failed=(), num_stragglers=0, num_surplus=0, generate_s=0.0, env_s=0.0)


def deal_jobs(jobs: Sequence[EpisodeJob], num_ranks: int) -> list[list[EpisodeJob]]:
    """Deal jobs to ranks by turns, group by group, so that a group is never split."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(job.group_id for job in jobs))}
    dealt: list[list[EpisodeJob]] = [[] for _ in range(num_ranks)]
    for job in jobs:
        dealt[numbers[job.group_id] % num_ranks].append(job)
    return dealt


def _merge(jobs: Sequence[EpisodeJob], rollouts: Sequence[Rollout]) -> Rollout:
    """Put together what the ranks brought back.

    Raises:
        NoEpisodeError: none brought an episode.
    """
    position = {job.episode_id: number for number, job in enumerate(jobs)}
    episodes = [episode for rollout in rollouts for episode in rollout.episodes]
    failed = [failed for rollout in rollouts for failed in rollout.failed]
    if failed and not episodes:
        raise NoEpisodeError(f"all {len(jobs)} episodes failed; the first: {failed[0].reason}")
    return replace(
        _NOTHING,
        episodes=tuple(sorted(episodes, key=lambda episode: position[episode.episode_id])),
        failed=tuple(sorted(failed, key=lambda failed: position[failed.job.episode_id])),
        num_stragglers=sum(rollout.num_stragglers for rollout in rollouts),
        num_surplus=sum(rollout.num_surplus for rollout in rollouts),
        generate_s=max(rollout.generate_s for rollout in rollouts),
        env_s=max(rollout.env_s for rollout in rollouts),
    )
