"""Batches sampled ahead: which weights each has, what is stored, and how the two threads part."""

from __future__ import annotations

import itertools
import threading

import pytest

from srpo_envs.errors import NoEpisodeError
from srpo_envs.records import Episode
from srpo_train.collect import EpisodeJob, FailedEpisode, Rollout
from srpo_train.overlap.batches import BatchesAhead
from srpo_train.overlap.source import Weights


def jobs_of(step: int) -> list[EpisodeJob]:
    return [
        EpisodeJob(episode_id=f"step{step}/p{p}/g0", group_id=f"step{step}/p{p}", task_index=p, env_seed=0)
        for p in range(2)
    ]


class World:
    """A trainer's weights, engines that have some version of them, and a collector that writes it down."""

    def __init__(self, max_lag: int, *, step: int = 0, num_steps: int = 6, stored=None, before=lambda step: None):
        self.version = self.in_engines = step
        self.pushes: list[int] = []
        self.sampled: dict[int, int] = {}  # step of a batch: version that sampled it
        self.before = before
        self.source = BatchesAhead(
            self._collect,
            lambda: Weights(version=self.version, by_policy={}),
            self._push,
            jobs_of,
            step=step,
            num_steps=num_steps,
            max_lag=max_lag,
            stored=stored,
        )

    def _push(self, weights: Weights) -> dict[str, float]:
        self.in_engines = weights.version
        self.pushes.append(weights.version)
        return {}

    def _collect(self, jobs, check) -> Rollout:
        step = int(jobs[0].group_id.partition("/")[0].removeprefix("step"))
        self.before(step)
        check()
        self.sampled[step] = self.in_engines
        episodes = tuple(
            Episode(
                episode_id=job.episode_id,
                env_id="none",
                env_kwargs={},
                seed=job.env_seed,
                task={},
                task_id="t",
                group_id=job.group_id,
                info={"version": self.in_engines},
            )
            for job in jobs
        )
        failed = (FailedEpisode(job=jobs[0], reason="as wished", num_events=1, is_expired=True),)
        return Rollout(episodes=episodes, failed=failed, num_stragglers=1, num_surplus=0, generate_s=1.0, env_s=0.5)

    def train(self, *, is_updated: bool = True) -> list[str]:
        (rollout,) = self.source.take()
        self.version += is_updated
        self.source.step_done(is_updated=is_updated)
        return [episode.episode_id for episode in rollout.episodes]


@pytest.mark.parametrize("max_lag", [1, 2, 4])
def test_a_batch_has_the_weights_of_exactly_so_many_updates_before(max_lag):
    world = World(max_lag)
    trained = list(itertools.chain.from_iterable(world.train() for _ in range(6)))
    world.source.close()
    assert world.sampled == {step: max(0, step - 1 - max_lag) for step in range(1, 7)}
    assert trained == [job.episode_id for step in range(1, 7) for job in jobs_of(step)]


def test_nothing_is_sampled_for_steps_after_the_last():
    world = World(4, num_steps=2)
    world.train(), world.train()
    world.source.close()
    assert sorted(world.sampled) == [1, 2]


def test_the_next_batches_are_sampled_while_a_step_is_in_training():
    third = threading.Event()
    world = World(2, before=lambda step: third.set() if step == 3 else None)
    next(world.source.take())
    assert third.wait(20.0)  # and step 1 is not over
    world.source.close()


def test_a_step_without_an_update_changes_no_weights():
    world = World(1)
    for is_updated in (True, False, True):
        world.train(is_updated=is_updated)
    world.train()
    world.source.close()
    assert [world.sampled[step] for step in range(1, 5)] == [0, 0, 1, 1]


def test_whoever_borrows_the_engines_finds_the_newest_weights_and_the_next_batch_its_own():
    world = World(2)
    with world.source.at_newest():
        assert world.in_engines == 0
    world.train()
    with world.source.at_newest():
        assert world.in_engines == 1
    for _ in range(5):
        world.train()
    world.source.close()
    assert world.sampled == {step: max(0, step - 3) for step in range(1, 7)}


@pytest.mark.parametrize("max_lag", [1, 3])
def test_a_stored_and_resumed_source_goes_on_as_the_whole_one(max_lag, tmp_path):
    whole = World(max_lag)
    for _ in range(6):
        whole.train()
    parts = World(max_lag)
    for _ in range(2):
        parts.train()
    parts.source.save(tmp_path / "ahead")
    parts.source.close()
    resumed = World(max_lag, step=2, stored=tmp_path / "ahead")
    (rollout,) = resumed.source.take()
    assert [failed.is_expired for failed in rollout.failed] == [True]
    assert [episode.info["version"] for episode in rollout.episodes] == [whole.sampled[3]] * 2
    for _ in range(4):
        resumed.train()
    assert parts.sampled | resumed.sampled == whole.sampled
    assert min(resumed.sampled) == 2 + max_lag + 1  # the stored ones are not sampled again
    whole.source.close(), resumed.source.close()


def test_a_restart_gives_everything_up_and_counts_it():
    fourth = threading.Event()
    world = World(3, before=lambda step: fourth.set() if step == 4 else None)
    world.train()
    assert fourth.wait(20.0)
    world.version = 10  # another branch
    world.source.restart()
    assert world.source.metrics()["rollout/num_stale_groups"] >= 2 * 2
    assert world.source.metrics() == {"rollout/num_stale_groups": 0.0}
    assert world.in_engines == 10
    assert world.train() == [job.episode_id for job in jobs_of(2)]
    assert world.sampled[2] == 10
    world.source.close()


def test_a_failed_collection_is_raised_where_its_batch_is_waited_for():
    def fail(step):
        if step == 2:
            raise NoEpisodeError("nothing came through")

    world = World(1, before=fail)
    world.train()
    with pytest.raises(NoEpisodeError, match="nothing came through"):
        world.train()
    world.source.close()


def test_closing_ends_a_batch_under_way():
    begun, release = threading.Event(), threading.Event()

    def hold(step):
        begun.set()
        release.wait(20.0)

    world = World(1, before=hold)
    world.source._worker.start()
    assert begun.wait(20.0)
    threading.Timer(0.05, release.set).start()
    world.source.close()
    assert world.sampled == {}
