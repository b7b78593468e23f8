"""Rollouts of several ranks: groups stay whole, order is that of the jobs, and what failed is counted."""

from __future__ import annotations

import dataclasses

import pytest

from srpo_envs.errors import NoEpisodeError
from srpo_train.collect import EpisodeJob, FailedEpisode, Rollout
from srpo_train.distributed.collecting import RankCollector, deal_jobs
from srpo_train.distributed.ranks import Ranks
from srpo_train.engines.base import Sampling


def jobs(*groups):
    return [EpisodeJob(episode_id=f"e{n}", group_id=g, task_index=0, env_seed=0) for n, g in enumerate(groups)]


@dataclasses.dataclass
class Ended:
    """As much of an episode as is put in order."""

    episode_id: str


class FakeCollector:
    """Finishes the jobs of some groups and loses the others, as `Collector` does."""

    def __init__(self, lost):
        self.lost = lost

    def collect(self, jobs, sampling, on_progress=None, *, keep_per_group=None, on_end=None):
        ends = [
            FailedEpisode(job=job, reason="server down", num_events=0)
            if job.group_id in self.lost
            else Ended(job.episode_id)
            for job in jobs
        ]
        for end in ends:
            on_end(end)
        episodes = tuple(end for end in ends if isinstance(end, Ended))
        if not episodes:
            raise NoEpisodeError("all failed")
        failed = tuple(end for end in ends if isinstance(end, FailedEpisode))
        return Rollout(
            episodes=episodes, failed=failed, num_stragglers=1, num_surplus=2, generate_s=len(jobs), env_s=0.5
        )


class InTurn(Ranks):
    """Ranks that are called one after the other in one process: the last one has what all of them gave."""

    given: list

    def gather(self, item):
        self.given.append(item)
        return self.given


def collect(asked, size, lost=(), **options):
    given = []
    for rank in range(size):
        ranks = InTurn(rank, size)
        ranks.given = given
        collector = RankCollector(FakeCollector(lost), ranks, **({"num_collecting": size} | options))
        try:
            result = collector.collect(asked, Sampling())
        except NoEpisodeError as error:
            result = error
    return result


def test_a_group_is_never_split():
    dealt = deal_jobs(jobs("x", "y", "x", "z", "y"), 2)
    assert [[job.episode_id for job in share] for share in dealt] == [["e0", "e2", "e3"], ["e1", "e4"]]
    assert deal_jobs(jobs("x"), 2)[1] == []


def test_all_episodes_come_back_in_the_order_of_the_jobs():
    rollout = collect(jobs("x", "y", "x", "z", "y"), 2)
    assert [episode.episode_id for episode in rollout.episodes] == ["e0", "e1", "e2", "e3", "e4"]
    # Counts add up; the ranks work at the same time, so the slowest one's 3 episodes are the clock.
    assert (rollout.num_stragglers, rollout.num_surplus, rollout.generate_s, rollout.env_s) == (2, 4, 3, 0.5)


def test_a_rank_that_lost_all_its_episodes_counts_them_and_the_others_go_on():
    rollout = collect(jobs("x", "y", "x"), 2, lost=("y",))
    assert [episode.episode_id for episode in rollout.episodes] == ["e0", "e2"]
    assert [failed.job.episode_id for failed in rollout.failed] == ["e1"]


def test_nothing_at_all_is_an_error_on_every_rank():
    error = collect(jobs("x", "y"), 2, lost=("x", "y"))
    assert isinstance(error, NoEpisodeError)
    assert "all 2 episodes failed; the first: server down" in str(error)


@pytest.mark.parametrize("size", [2, 3])
def test_with_one_collecting_rank_the_others_only_receive(size):
    rollout = collect(jobs("x", "y"), size, num_collecting=1)
    assert [episode.episode_id for episode in rollout.episodes] == ["e0", "e1"]
    assert rollout.num_stragglers == 1
