"""The asynchronous collector: no barrier, bounded tails, fair polling, engines left at rest."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest
from collect_world import SAMPLING, ShuffledEngine, Troubled, answer, make_jobs, scripted

from srpo_envs.errors import ConfigError, EngineError, SurroundingsError
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector
from srpo_train.collect.collection import Collection
from srpo_train.collect.environments import EnvPool
from srpo_train.collect.requests import Requester
from srpo_train.collect.tally import Tally
from srpo_train.engines.base import StreamingEngine
from srpo_train.engines.simulated import SimulatedEngine

SHARED = {"*": "team"}


@pytest.fixture
def make_collector():
    collectors = []

    def make(engines, tasks=None, roles=SHARED, **settings):
        family = tasks or Arithmetic()
        if isinstance(engines, StreamingEngine):
            engines = {"team": engines}
        make_env = lambda: SolverVerifier(family, num_solvers=3, max_new_tokens=1000)  # noqa: E731
        collectors.append(Collector(make_env, engines, roles, mode="asynchronous", **settings))
        return collectors[-1]

    yield make
    for collector in collectors:
        collector.close()


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def shuffled(is_held=lambda request: False, script=answer):
    return ShuffledEngine("team", script, random.Random(0), is_held)


def episode_ids(rollout):
    return [episode.episode_id for episode in rollout.episodes]


# --- no barrier ---------------------------------------------------------------------------------------------------


def test_an_episode_goes_on_while_others_wait_for_a_response(make_collector):
    # t0's first draft comes only after every other episode has ended, which no barrier would allow.
    ended = []
    engine = shuffled(is_held=lambda request: request.request_id == "t0/g0/e0/0" and len(ended) < 3)
    rollout = make_collector(engine).collect(make_jobs(4), SAMPLING, lambda done, total: ended.extend([0] * done))
    assert len(rollout.episodes) == 4


def test_an_episode_goes_on_while_another_environment_moves(make_collector):
    others_ended = threading.Event()
    tasks = Troubled({0: lambda: others_ended.wait(20.0) or pytest.fail("the others waited for this environment")})

    def notice(done, total):
        if done == 3:
            others_ended.set()

    rollout = make_collector(shuffled(), tasks).collect(make_jobs(4), SAMPLING, notice)
    assert len(rollout.episodes) == 4
    assert rollout.num_stragglers == 0


def test_the_requests_of_an_active_set_are_submitted_together(make_collector):
    engine = shuffled()
    make_collector(engine).collect(make_jobs(5), SAMPLING)
    for batch in engine.batches:
        drafts = [name for name in batch if "/e0/" in name]
        assert all(f"{name.rpartition('/')[0]}/{member}" in drafts for name in drafts for member in range(3))


def test_a_waiting_episode_begins_when_another_one_ends(make_collector):
    engine = shuffled()
    running, most = set(), [0]
    submit = engine.submit

    def count(requests, sampling):
        running.update(request.request_id.partition("/")[0] for request in requests)
        submit(requests, sampling)
        most[0] = max(most[0], len({name.partition("/")[0] for name in engine.under_way}))

    engine.submit = count
    rollout = make_collector(engine, max_concurrent=2).collect(make_jobs(7), SAMPLING)
    assert len(rollout.episodes) == len(running) == 7
    assert most[0] == 2


# --- several engines ----------------------------------------------------------------------------------------------


def test_a_busy_engine_starves_no_other(make_collector):
    # The drafts' engine never finishes the drafts of t0 before every other episode has ended.
    ended = []
    drafts = ShuffledEngine(
        "drafts", answer, random.Random(1), lambda request: request.request_id.startswith("t0/") and len(ended) < 3
    )
    rest = ShuffledEngine("rest", answer, random.Random(2))
    collector = make_collector({"drafts": drafts, "rest": rest}, roles={"solver": "drafts", "*": "rest"})
    rollout = collector.collect(make_jobs(4), SAMPLING, lambda done, total: ended.extend([0] * done))
    policies = {(m.role, m.policy_id) for e in rollout.episodes for event in e.events for m in event.members}
    assert policies == {("solver", "drafts"), ("verifier", "rest"), ("aggregator", "rest")}
    assert drafts.num_polls[True] > 3


def test_a_served_engine_that_waits_does_not_hold_up_one_that_computes(make_collector):
    class Served(ShuffledEngine):
        """Uses up every wait it is granted."""

        def poll(self, timeout_s):
            time.sleep(timeout_s)
            return super().poll(0.0)

    # t0 is drafted in a step and then waits for its verdict until all other drafts are there, 400 steps later.
    computing = SimulatedEngine(
        "computing", answer, lambda request: 1 if request.request_id[:2] == "t0" else 400, step_s=1e-4
    )
    served = Served("served", answer, random.Random(3), lambda request: computing.usage.num_steps < 400)
    collector = make_collector({"served": served, "computing": computing}, roles={"solver": "computing", "*": "served"})
    begun = time.monotonic()
    collector.collect(make_jobs(4), SAMPLING)
    assert (
        time.monotonic() - begun < 5.0
    )  # 400 waits of 1 ms; with waits of a tick 20 s, and for ever if it only waited


def test_only_engines_with_work_are_polled(make_collector):
    drafts, rest = (ShuffledEngine(name, answer, random.Random(0)) for name in ("drafts", "rest"))
    collector = make_collector({"drafts": drafts, "rest": rest}, roles={"solver": "drafts", "*": "rest"})
    collector.collect(make_jobs(3), SAMPLING)
    assert drafts.num_polls[False] == rest.num_polls[False] == 0


# --- deadlines ----------------------------------------------------------------------------------------------------


def test_a_response_over_its_deadline_is_cancelled_and_its_episode_dropped(make_collector):
    engine = shuffled(is_held=lambda request: request.request_id == "t1/g0/e1/0")
    rollout = make_collector(engine, request_timeout_s=2.0).collect(make_jobs(3), SAMPLING)
    assert episode_ids(rollout) == ["t0/g0", "t2/g0"]
    (failed,) = rollout.failed
    assert failed.reason == "response 't1/g0/e1/0' took over 2 s"
    assert (failed.is_expired, failed.is_unanswerable, failed.num_events) == (True, False, 1)
    assert engine.cancelled == ["t1/g0/e1/0"]


def test_with_one_response_the_whole_active_set_is_given_up(make_collector):
    engine = shuffled(is_held=lambda request: request.request_id in ("t1/g0/e0/0", "t1/g0/e0/2"))
    rollout = make_collector(engine, request_timeout_s=2.0).collect(make_jobs(2), SAMPLING)
    assert [failed.job.episode_id for failed in rollout.failed] == ["t1/g0"]
    assert sorted(engine.cancelled) == ["t1/g0/e0/0", "t1/g0/e0/2"]
    assert not engine.under_way


def test_a_retry_has_its_own_deadline(make_collector):
    tries = itertools.count()
    script = lambda request: None if next(tries) < 4 else answer(request)  # noqa: E731
    engine = SimulatedEngine("team", script, lambda request: 1, step_s=0.6)
    collector = make_collector(engine, request_timeout_s=1.05, step_retries=4)
    assert len(collector.collect(make_jobs(1), SAMPLING).episodes) == 1  # its first set takes 1.8 s


def test_the_deadline_of_an_episode_counts_all_its_responses(make_collector):
    engine = SimulatedEngine("team", answer, lambda request: 1, step_s=0.15)
    with pytest.raises(SurroundingsError, match=r"the episode took over 0\.3 s"):
        make_collector(engine, episode_timeout_s=0.3).collect(make_jobs(1), SAMPLING)


def test_an_episode_over_its_deadline_is_dropped_while_it_waits_for_a_response(make_collector):
    engine = shuffled(is_held=lambda request: request.request_id.startswith("t1/g0/e2/"))
    rollout = make_collector(engine, episode_timeout_s=2.0).collect(make_jobs(3), SAMPLING)
    assert episode_ids(rollout) == ["t0/g0", "t2/g0"]
    assert rollout.failed[0].reason == "the episode took over 2 s"
    assert rollout.failed[0].is_expired
    assert engine.cancelled == ["t1/g0/e2/0"]


def test_an_episode_over_its_deadline_is_dropped_while_its_environment_moves(make_collector, release):
    collector = make_collector(shuffled(), Troubled({1: release.wait}), episode_timeout_s=2.0, num_workers=2)
    rollout = collector.collect(make_jobs(3), SAMPLING)
    assert episode_ids(rollout) == ["t0/g0", "t2/g0"]
    assert rollout.failed[0].reason == "the episode took over 2 s"


def test_waiting_for_its_turn_does_not_count_against_an_episode(make_collector):
    tasks = Troubled(dict.fromkeys(range(6), lambda: time.sleep(0.4)))
    collector = make_collector(shuffled(), tasks, episode_timeout_s=2.0, max_concurrent=1)
    assert len(collector.collect(make_jobs(6), SAMPLING).episodes) == 6


def test_late_answers_of_one_collection_are_not_taken_for_those_of_the_next(make_collector):
    # Both collections use the same request ids; what was cancelled in the first comes back, late, as aborted.
    held = {"t1/g0/e0/0", "t2/g0/e0/1", "t3/g0/e0/2"}
    engine = shuffled(is_held=lambda request: request.request_id in held)
    collector = make_collector(engine, request_timeout_s=1.0, step_retries=0)
    assert episode_ids(collector.collect(make_jobs(4), SAMPLING)) == ["t0/g0"]
    held.clear()
    assert len(collector.collect(make_jobs(4), SAMPLING).episodes) == 4


def test_when_every_episode_expires_the_collection_fails(make_collector):
    with pytest.raises(SurroundingsError, match="all 2 episodes failed; the first: response 't0/g0/e0/0' took over"):
        make_collector(shuffled(lambda request: True), request_timeout_s=0.1).collect(make_jobs(2), SAMPLING)


# --- over-sampled groups ------------------------------------------------------------------------------------------


def test_the_first_episodes_of_a_group_are_kept_and_the_others_given_up(make_collector):
    engine = shuffled(is_held=lambda request: request.request_id.startswith(("t0/g1/e1", "t1/g3/e0")))
    rollout = make_collector(engine).collect(make_jobs(2, groups=4), SAMPLING, keep_per_group=3)
    assert episode_ids(rollout) == ["t0/g0", "t0/g2", "t0/g3", "t1/g0", "t1/g1", "t1/g2"]
    assert (rollout.num_surplus, rollout.failed) == (2, ())
    assert set(engine.cancelled) == {"t0/g1/e1/0", "t1/g3/e0/0", "t1/g3/e0/1", "t1/g3/e0/2"}
    assert not engine.under_way


def test_surplus_responses_are_cancelled_at_once(make_collector):
    def is_held(request):
        return request.request_id == "t0/g1/e1/0" or (request.request_id[:2] == "t1" and not engine.cancelled)

    engine = shuffled(is_held)
    rollout = make_collector(engine).collect(make_jobs(2, groups=2), SAMPLING, keep_per_group=1)
    assert len(rollout.episodes) == 2


def test_a_failed_episode_is_replaced_by_a_surplus_one(make_collector):
    engine = shuffled(script=lambda request: None if request.request_id == "t0/g0/e0/0" else answer(request))
    rollout = make_collector(engine).collect(make_jobs(1, groups=3), SAMPLING, keep_per_group=2)
    assert episode_ids(rollout) == ["t0/g1", "t0/g2"]
    assert [failed.job.episode_id for failed in rollout.failed] == ["t0/g0"]


def test_episodes_of_a_complete_group_are_not_begun(make_collector):
    engine = shuffled()
    rollout = make_collector(engine, max_concurrent=1).collect(make_jobs(2, groups=3), SAMPLING, keep_per_group=1)
    assert episode_ids(rollout) == ["t0/g0", "t1/g0"]
    assert rollout.num_surplus == 4
    assert {name.rpartition("/e")[0] for batch in engine.batches for name in batch} == {"t0/g0", "t1/g0"}


def test_a_surplus_environment_that_moves_is_left_behind(make_collector, release):
    # The two gradings of the group wait for each other; then one of them hangs, in the hands of one of two workers.
    order, second = itertools.count(), threading.Event()

    def grade():
        if next(order) == 0:
            second.wait(20.0)
        elif not second.is_set():
            second.set()
            release.wait()

    collector = make_collector(shuffled(), Troubled({0: grade}), num_workers=2)
    rollout = collector.collect(make_jobs(1, groups=2), SAMPLING, keep_per_group=1)
    assert (len(rollout.episodes), rollout.num_surplus) == (1, 1)
    assert len(collector.collect(make_jobs(3), SAMPLING).episodes) == 3


def test_a_surplus_episode_is_not_asked_even_if_its_environment_has_just_moved():
    envs = EnvPool(lambda: SolverVerifier(Arithmetic(), num_solvers=3), num_workers=1, step_retries=0)
    requester = Requester(SHARED, ["team"], seed=0)
    jobs = make_jobs(1, groups=2)
    tally = Tally(jobs)
    collection = Collection(envs, requester, tally, max_concurrent=2, step_timeout_s=60.0, keep_per_group=1)
    collection.add(jobs)
    engine = scripted("team")

    def play(slot):
        requests = [request for _, request in requester.requests(slot.pending)]
        slot.answers = {item.request_id: item for item in engine.generate(requests, SAMPLING)}
        collection.commit(slot)
        assert collection.await_move(20.0)

    collection.start_waiting()
    assert collection.await_move(20.0) and collection.await_move(20.0)
    first, second = collection.take_ready()
    play(first)
    collection.take_ready()
    play(first)
    collection.take_ready()
    play(second)  # now it has a new set pending
    play(first)  # and its group is complete
    assert collection.take_surplus() == [second]
    collection.give_up_surplus(second)
    assert collection.take_ready() == []
    assert not collection.is_running
    assert tally.rollout(num_stragglers=0, generate_s=0.0, env_s=0.0).num_surplus == 1
    envs.close()


@pytest.mark.parametrize("seed", range(5))
def test_every_episode_is_kept_failed_or_surplus(make_collector, seed):
    rng = random.Random(seed)
    broken = {f"t{rng.randrange(4)}/g{rng.randrange(5)}/e0/1" for _ in range(4)}
    script = lambda request: None if request.request_id in broken else answer(request)  # noqa: E731
    engine = ShuffledEngine("team", script, rng)
    rollout = make_collector(engine, step_retries=0).collect(make_jobs(4, groups=5), SAMPLING, keep_per_group=3)
    assert len(rollout.episodes) + len(rollout.failed) + rollout.num_surplus == 20
    kept = [episode.group_id for episode in rollout.episodes]
    assert all(kept.count(group) <= 3 for group in kept)


# --- engines ------------------------------------------------------------------------------------------------------


def test_an_engine_that_fails_leaves_the_others_at_rest(make_collector):
    class Dying(ShuffledEngine):
        def poll(self, timeout_s):
            raise EngineError("the server is gone")

        def cancel(self, request_ids):
            raise EngineError("the server is still gone")

    drafts = ShuffledEngine("drafts", answer, random.Random(0), lambda request: request.request_id[:2] == "t0")
    dying = Dying("rest", answer, random.Random(0))
    collector = make_collector({"rest": dying, "drafts": drafts}, roles={"solver": "drafts", "*": "rest"})
    with pytest.raises(EngineError, match="the server is gone"):
        collector.collect(make_jobs(3), SAMPLING)
    assert {"t0/g0/e0/0", "t0/g0/e0/1", "t0/g0/e0/2"} <= set(drafts.cancelled)
    assert not drafts.under_way
    assert not drafts.late


def test_an_engine_with_generate_only_is_refused_with_the_way_out(make_collector):
    with pytest.raises(ConfigError, match=r"the engines of \['team'\] have only `generate`; use mode 'rounds'"):
        make_collector({"team": scripted("team")})


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="unknown mode 'asynchronos'; did you mean 'asynchronous'"):
        Collector(lambda: SolverVerifier(Arithmetic()), {}, SHARED, mode="asynchronos")


def test_generating_and_waiting_for_environments_are_told_apart(make_collector):
    engine = SimulatedEngine("team", answer, lambda request: 10, step_s=0.01)
    tasks = Troubled({0: lambda: time.sleep(0.2)})
    rollout = make_collector(engine, tasks).collect(make_jobs(1), SAMPLING)
    assert rollout.generate_s >= 3 * 10 * 0.01
    assert rollout.env_s >= 0.2
