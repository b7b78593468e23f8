"""Environments in other processes: the same episodes as here, whichever worker dies at whichever move."""

from __future__ import annotations

import asyncio
import random

import pytest

pytest.importorskip("torch")

from collect_world import SAMPLING, make_jobs, role_of, scripted
from hypothesis import given, settings
from hypothesis import strategies as st
from ray_lines import LocalLine

import srpo_envs
from srpo_envs.errors import EnvMisuseError, WorkerLostError
from srpo_train.cluster.worlds import EnvHost, EnvWorker, EnvWorkers, WorldKey
from srpo_train.collect import Collector
from srpo_train.config import EnvConfig

CONFIG = EnvConfig(id="srpo_envs/ArithmeticSolverVerifier-v0", kwargs={"level": 2, "num_solvers": 3})
CHOICES = {"verifier": ["<verify>approve</verify>", "<verify>reject</verify>", "?"]}


def drawn(request):
    """An answer that its seed alone decides, so that episodes have one to several events."""
    rng = random.Random(request.seed)
    return rng.choice(CHOICES.get(role_of(request)) or [rf"\boxed{{{rng.randrange(10)}}}", "no idea"])


def collect(make_env, num_tasks=4):
    collector = Collector(make_env, {"team": scripted("team", drawn)}, {"*": "team"}, seed=3, num_workers=4)
    try:
        rollout = collector.collect(make_jobs(num_tasks, groups=2), SAMPLING)
    finally:
        collector.close()
    assert not rollout.failed
    return rollout.episodes


def local():
    return srpo_envs.make(CONFIG.id, **CONFIG.kwargs)


def workers(*lines, **options):
    return EnvWorkers(lines, patience_s=5.0, **options)


def line(name="environments 0"):
    return LocalLine(name, EnvHost)


def test_episodes_are_those_of_environments_in_this_process():
    remote = workers(line("a"), line("b"))
    assert collect(lambda: remote.make(CONFIG)) == collect(local)


@settings(max_examples=15, deadline=None)
@given(fatal_calls=st.frozensets(st.integers(0, 40), min_size=1, max_size=8), num_workers=st.sampled_from([1, 2]))
def test_no_death_of_a_worker_changes_an_episode(fatal_calls, num_workers):
    lines = [line(str(number)) for number in range(num_workers)]
    lines[0].fatal_calls = fatal_calls
    rebuilt = []
    remote = workers(*lines, on_rebuilt=lambda: rebuilt.append(True))
    assert collect(lambda: remote.make(CONFIG), num_tasks=3) == collect(local, num_tasks=3)
    assert bool(rebuilt) == any(number < lines[0].num_answers for number in fatal_calls)


def test_an_episode_goes_on_from_its_record_and_asks_nobody_twice():
    first, second = line("a"), line("b")
    world = workers(first, second).make(CONFIG)
    expected = local()
    active, here = world.reset(seed=5, options={"task_index": 1}), expected.reset(seed=5, options={"task_index": 1})
    assert active == here
    first.is_gone = True
    texts = [r"\boxed{1}"] * 3
    assert world.step(active.outputs(texts)) == expected.step(here.outputs(texts))
    assert first.asked == ["reset", "step"]
    assert second.asked == ["resume", "step"]
    assert len(world.episode.events) == 1


def test_a_restarted_worker_gets_its_environments_again():
    only = line()
    world = workers(only).make(CONFIG)
    active = world.reset(seed=5, options={"task_index": 1})
    only.host = EnvHost()
    world.step(active.outputs([r"\boxed{1}"] * 3))
    assert only.asked == ["reset", "step", "resume", "step"]


def test_a_world_waits_for_a_worker_that_restarts():
    only = line()
    world = workers(only).make(CONFIG)
    only.num_refusals = 2
    assert world.reset(seed=5, options={"task_index": 1}).cardinality == 3


def test_without_a_worker_for_too_long_the_episode_is_lost():
    only = line()
    world = EnvWorkers([only], patience_s=0.2).make(CONFIG)
    only.is_gone = True
    with pytest.raises(WorkerLostError, match="environments 0 is lost"):
        world.reset(seed=5)


def test_errors_of_an_environment_come_through_as_they_are():
    world = workers(line()).make(CONFIG)
    with pytest.raises(EnvMisuseError, match=r"unknown option 'task_idx'.*did you mean"):
        world.reset(seed=5, options={"task_idx": 1})
    with pytest.raises(EnvMisuseError, match="call reset"):
        world.episode  # noqa: B018


def test_environments_are_spread_over_workers_and_ranks_begin_at_different_ones():
    lines = [line(name) for name in "abc"]
    for rank, expected in ((0, "aabbcc"), (1, "aabbcc")):
        taken = EnvWorkers(lines, rank=rank)
        assert sorted(taken.take().name for _ in range(6)) == list(expected)
        assert EnvWorkers(lines, rank=rank).take().name == "abc"[rank]


def test_what_a_dead_rank_left_behind_is_dropped_when_it_is_back():
    host = EnvHost()
    host.reset(WorldKey(0, 0, 0), CONFIG, 5, None)
    host.reset(WorldKey(1, 0, 0), CONFIG, 5, None)
    host.reset(WorldKey(0, 1, 0), CONFIG, 5, None)
    with pytest.raises(WorkerLostError):
        host.step(WorldKey(0, 0, 0), ())
    assert host.reset(WorldKey(1, 0, 0), CONFIG, 5, None)
    assert set(host._envs) == {WorldKey(1, 0, 0), WorldKey(0, 1, 0)}


def test_closing_releases_the_environment_there():
    only = line()
    world = workers(only).make(CONFIG)
    world.reset(seed=5)
    world.close()
    assert only.asked[-1] == "close_world"


def test_a_worker_tells_of_every_grader_it_lost_once(monkeypatch):
    class Here:
        def __init__(self):
            self.counted = []

        def arrive(self):
            pass

        def count(self, name):
            self.counted.append(name)

    desk = Here()
    worker = EnvWorker(desk)
    for num_lost, expected in ((0, 0), (2, 2), (2, 2), (3, 3)):
        monkeypatch.setattr("srpo_train.cluster.worlds.num_lost_workers", lambda number=num_lost: number)
        asyncio.run(worker.ask("close_world", WorldKey(0, 0, 0)))
        assert desk.counted == ["lost graders"] * expected
