"""Groups sampled ahead on an engine that answers in any order: each trained once, none too old, none lost uncounted."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from collect_world import SAMPLING, ShuffledEngine, Troubled, role_of
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.audit import audit_episodes
from srpo_envs.errors import NoEpisodeError, SurroundingsError
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector, EpisodeJob
from srpo_train.overlap.groups import GroupsAhead
from srpo_train.overlap.source import Weights

GROUP_SIZE = 2
PER_STEP = 3


def jobs_of(position: int) -> list[EpisodeJob]:
    group = f"step{position // PER_STEP + 1}/p{position % PER_STEP}"
    return [
        EpisodeJob(episode_id=f"{group}/g{member}", group_id=group, task_index=position % 7, env_seed=position)
        for member in range(GROUP_SIZE)
    ]


class World:
    """A trainer of numbered weights, a real collector and an engine that answers in random order."""

    def __init__(
        self,
        seed: int = 0,
        *,
        max_lag: int = 2,
        num_steps: int = 4,
        num_parts: int = 1,
        step: int = 0,
        stored=None,
        broken=lambda request: False,
        is_held=lambda request: False,
        tasks=None,
        **settings,
    ) -> None:
        self.rng = random.Random(seed)
        self.version = step
        self.num_pushes = 0
        self.engine = ShuffledEngine("team", lambda r: None if broken(r) else self._answer(r), self.rng, is_held)
        self.engine._scripted.policy_version = step
        family = tasks or Arithmetic()
        self.collector = Collector(
            lambda: SolverVerifier(family, num_solvers=2, max_new_tokens=1000),
            {"team": self.engine},
            {"*": "team"},
            mode="asynchronous",
            max_concurrent=5,
            num_workers=2,
            step_retries=0,
        )
        self.source = GroupsAhead(
            lambda ends: self.collector.open_stream(ends, SAMPLING),
            lambda: Weights(version=self.version, by_policy={}),
            self._push,
            jobs_of,
            step=step,
            num_steps=num_steps,
            per_step=PER_STEP,
            num_parts=num_parts,
            max_lag=max_lag,
            stored=stored,
            first_pause_s=0.001,
            **settings,
        )

    @staticmethod
    def _answer(request):
        if role_of(request) == "verifier":
            return f"<verify>{'approve' if request.seed % 3 else 'reject'}</verify>"
        return f"\\boxed{{{request.seed % 10}}}"

    def _push(self, weights: Weights) -> dict[str, float]:
        assert not self.engine.under_way, "weights were changed under a request"
        self.engine._scripted.policy_version = weights.version
        self.num_pushes += 1
        return {}

    def train(self) -> list[list]:
        """One step: the parts, each a list of episodes."""
        rollouts = list(self.source.take())
        self.failed = [failed.job.episode_id for rollout in rollouts for failed in rollout.failed]
        self.version += 1
        self.source.step_done(is_updated=True)
        return [list(rollout.episodes) for rollout in rollouts]

    def close(self) -> None:
        self.source.close()
        self.collector.close()


@pytest.fixture
def make_world():
    worlds = []

    def make(*args, **kwargs):
        worlds.append(World(*args, **kwargs))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def versions_of(episode) -> list[int]:
    return [member.policy_version for event in episode.events for member in event.members]


@given(seed=st.integers(0, 2**16), max_lag=st.integers(1, 3), num_parts=st.integers(1, 3), num_broken=st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_every_episode_of_any_schedule_is_trained_once_or_counted(seed, max_lag, num_parts, num_broken):
    rng = random.Random(seed)
    broken = {f"step{rng.randint(1, 4)}/p{rng.randrange(3)}/g{rng.randrange(2)}/e1/0" for _ in range(num_broken)}
    world = World(seed, max_lag=max_lag, num_parts=num_parts, broken=lambda request: request.request_id in broken)
    try:
        trained, failed = [], []
        for version in range(4):
            parts = world.train()
            failed += world.failed
            for episode in (episode for part in parts for episode in part):
                assert 0 <= version - min(versions_of(episode)) <= max_lag
                assert max(versions_of(episode)) <= version
                trained.append(episode)
    finally:
        world.close()
    report = audit_episodes(trained)
    assert report.is_ok, report.summary()  # no id twice; members of an event share their version
    ends = Counter([episode.episode_id for episode in trained] + failed)
    assert set(ends.values()) == {1}
    assert sum(ends.values()) % GROUP_SIZE == 0  # whole groups only
    assert len({episode.group_id for episode in trained}) == 4 * PER_STEP  # a lost group is replaced
    begun = {name.rpartition("/e")[0] for batch in world.engine.batches for name in batch}
    assert ends.keys() <= begun
    assert begun == ends.keys(), "begun, and neither trained nor counted"  # the last step leaves nothing behind


def test_an_episode_that_is_under_way_at_a_push_goes_on_with_the_new_weights(make_world):
    # One episode is held at its second event until two updates have been made.
    slow = "step1/p0/g0/e1/0"
    world = make_world(max_lag=2, is_held=lambda request: request.request_id == slow and world.version < 1)
    first = [episode.group_id for part in world.train() for episode in part]
    assert "step1/p0" not in first  # it is not waited for yet
    rest = [episode for _ in range(3) for part in world.train() for episode in part]
    (episode,) = (episode for episode in rest if episode.episode_id == "step1/p0/g0")
    versions = [{member.policy_version for member in event.members} for event in episode.events]
    assert all(len(found) == 1 for found in versions)
    assert versions[0] == {0}
    assert versions[-1] > {0} or max(versions[-1]) >= 1


def test_a_push_waits_for_requests_and_holds_new_ones_back(make_world):
    world = make_world(3, max_lag=1, num_steps=6)
    num_asked_anyway = 0
    submit = world.engine.submit

    def watched(requests, sampling):
        nonlocal num_asked_anyway
        num_asked_anyway += world.source._wants_rest
        submit(requests, sampling)

    world.engine.submit = watched
    for _ in range(6):
        world.train()
    # Weights that newer ones overtake are never pushed, but max_lag = 1 asks for a push every second update at least.
    assert world.num_pushes >= 2  # and _push itself looks that nothing is under way
    # A turn that has begun when weights are offered may still ask, once before each push; later ones do not. The last
    # weights offered may not have been pushed yet.
    assert num_asked_anyway <= world.num_pushes + 1


def test_whoever_borrows_the_engine_finds_it_at_rest_with_the_newest_weights(make_world):
    world = make_world(max_lag=2)
    world.train()
    with world.source.at_newest():
        assert not world.engine.under_way
        assert world.engine._scripted.policy_version == 1
        num_batches = len(world.engine.batches)
        threading.Event().wait(0.05)
        assert len(world.engine.batches) == num_batches
    world.train()


def test_parts_are_handed_out_as_their_groups_are_complete(make_world):
    # One group of the step is held until the first part has been taken.
    is_released = threading.Event()
    world = make_world(
        max_lag=1,
        num_steps=1,
        num_parts=3,
        is_held=lambda request: request.request_id.startswith("step1/p1/") and not is_released.is_set(),
    )
    parts = world.source.take()
    first, second = next(parts), next(parts)
    is_released.set()
    third = next(parts)
    groups = [{episode.group_id for episode in part.episodes} for part in (first, second, third)]
    assert groups == [{"step1/p0"}, {"step1/p2"}, {"step1/p1"}] or groups == [{"step1/p2"}, {"step1/p0"}, {"step1/p1"}]


def test_the_time_of_a_turn_is_told_while_it_lasts(make_world):
    begun, is_released = threading.Event(), threading.Event()
    world = make_world()
    submit = world.engine.submit

    def slow(requests, sampling):
        begun.set()
        is_released.wait(60.0)
        submit(requests, sampling)

    world.engine.submit = slow
    world.source._worker.start()
    assert begun.wait(60.0)
    first = world.source.collecting_s  # of the first turn, which goes on
    threading.Event().wait(0.01)
    second = world.source.collecting_s
    is_released.set()
    assert 0 < first < second


def test_a_resumed_source_trains_what_was_stored_and_begins_again_what_was_under_way(make_world, tmp_path):
    stuck = lambda request: request.request_id.startswith("step2/p1/")  # noqa: E731
    world = make_world(max_lag=2, is_held=stuck)
    trained = [episode.episode_id for part in world.train() for episode in part]
    world.source.save(tmp_path / "ahead")
    world.close()
    resumed = make_world(1, step=1, max_lag=2, stored=tmp_path / "ahead")
    assert resumed.source.metrics()["rollout/num_recollected_episodes"] >= GROUP_SIZE
    for version in range(1, 4):
        for episode in (episode for part in resumed.train() for episode in part):
            assert version - min(versions_of(episode)) <= 2
            trained.append(episode.episode_id)
    assert len(set(trained)) == len(trained) == 4 * PER_STEP * GROUP_SIZE
    assert {"step2/p1/g0", "step2/p1/g1"} <= set(trained)


def test_a_restart_gives_up_and_counts_and_begins_the_same_prompts_again(make_world):
    world = make_world(max_lag=2)
    trained = [episode.episode_id for part in world.train() for episode in part]
    world.version = 10
    world.source.restart()
    assert world.source.metrics()["rollout/num_stale_groups"] > 0
    for _ in range(3):
        for episode in (episode for part in world.train() for episode in part):
            assert min(versions_of(episode)) >= 10
            trained.append(episode.episode_id)
    assert len(set(trained)) == len(trained) == 4 * PER_STEP * GROUP_SIZE


def test_when_nothing_comes_through_it_pauses_and_then_says_why(make_world):
    def fail():
        raise SurroundingsError("the search server is away")

    tasks = Troubled(dict.fromkeys(range(7), fail))
    world = make_world(max_lag=1, tasks=tasks, lost_step_retries=2)
    with pytest.raises(NoEpisodeError, match="the search server is away"):
        world.train()


def test_a_loss_that_ends_is_only_a_pause(make_world):
    calls = []

    def fail():
        calls.append(1)
        if len(calls) <= 12:
            raise SurroundingsError("the search server is away")

    world = make_world(max_lag=1, tasks=Troubled(dict.fromkeys(range(7), fail)), lost_step_retries=3)
    assert sum(map(len, world.train())) >= PER_STEP
