"""The collector, in both orders of work: whole events, job order, and nothing stalls or kills a batch."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time

import pytest
from collect_world import SAMPLING, Troubled, answer, make_jobs, role_of, scripted

from srpo_envs.errors import ConfigError, EngineError, EnvMisuseError, NoEpisodeError, SurroundingsError, ToolError
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector, EpisodeJob, derive_seed
from srpo_train.engines import BackgroundEngine, Sampling

SHARED = {"*": "team"}


@pytest.fixture(params=["rounds", "asynchronous"])
def mode(request):
    return request.param


@pytest.fixture
def make_collector(mode):
    """Makes collectors over scripted engines, which run in the background where the mode asks for streams."""
    opened = []

    def make(engines=None, roles=SHARED, tasks=None, **settings):
        family = tasks or Arithmetic()
        engines = engines or {"team": scripted("team")}
        if mode == "asynchronous":
            engines = {name: BackgroundEngine(engine) for name, engine in engines.items()}
            opened.extend(engines.values())
        collector = Collector(lambda: SolverVerifier(family, num_solvers=3), engines, roles, mode=mode, **settings)
        opened.append(collector)
        return collector

    yield make
    for item in reversed(opened):
        item.close()


@pytest.fixture
def release():
    """An event that frees whatever a test left hanging."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, even where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_episodes_come_back_complete_and_in_job_order(make_collector):
    rollout = make_collector().collect(make_jobs(5, groups=2), SAMPLING)
    assert [episode.episode_id for episode in rollout.episodes] == [f"t{t}/g{g}" for t in range(5) for g in range(2)]
    for episode in rollout.episodes:
        assert [(event.event_type, event.cardinality) for event in episode.events] == [
            ("solver", 3),
            ("verifier", 1),
            ("aggregator", 1),
        ]
        assert all(event.is_complete for event in episode.events)
        assert episode.group_id == episode.episode_id.partition("/")[0]


def test_isolated_policies_answer_for_their_roles_only(make_collector):
    engines = {name: scripted(name) for name in ("drafts", "rest")}
    rollout = make_collector(engines, {"solver": "drafts", "*": "rest"}).collect(make_jobs(2), SAMPLING)
    assert {role_of(request) for request in engines["drafts"].requests} == {"solver"}
    policies = {
        (member.role, member.policy_id) for e in rollout.episodes for event in e.events for member in event.members
    }
    assert policies == {("solver", "drafts"), ("verifier", "rest"), ("aggregator", "rest")}


def test_each_policy_draws_its_tokens_its_own_way(make_collector):
    engines = {name: scripted(name) for name in ("drafts", "rest")}
    samplings = {"drafts": Sampling(temperature=0.7), "rest": Sampling(temperature=0.0)}
    seen = {name: [] for name in engines}
    for name, engine in engines.items():
        engine.generate = lambda requests, sampling, name=name, generate=engine.generate: (
            seen[name].append(sampling),
            generate(requests, sampling),
        )[1]
    make_collector(engines, {"solver": "drafts", "*": "rest"}).collect(make_jobs(2), samplings)
    assert {name: set(used) for name, used in seen.items()} == {name: {samplings[name]} for name in seen}


def test_sampled_tokens_and_logprobs_reach_the_record_unchanged(make_collector):
    member = make_collector().collect(make_jobs(1), SAMPLING).episodes[0].events[0].members[0]
    # The scripted tokenizer writes UTF-8 bytes and the end token 256.
    assert member.token_ids == (*rb"\boxed{4}", 256)
    assert len(member.behavior_logprobs) == len(member.token_mask) == len(member.token_ids) == 10


def test_each_episode_is_graded_against_its_own_gold(make_collector):
    # br-021: whatever finishes first, a reward belongs to the question of its own episode.
    tasks = Troubled({0: lambda: time.sleep(0.2), 2: lambda: time.sleep(0.1)})
    golds = [tasks.task(index).gold for index in range(6)]

    def right(request):
        if role_of(request) == "verifier":
            return "<verify>approve</verify>"
        gold = next(tasks.task(i).gold for i in range(6) if tasks.task(i).question in request.prompt)
        return rf"\boxed{{{gold}}}"

    engines = {"team": scripted("team", right)}
    rollout = make_collector(engines, tasks=tasks, straggler_grace_s=0.01).collect(make_jobs(6), SAMPLING)
    assert [episode.info["answer"] for episode in rollout.episodes] == golds
    assert [episode.reward for episode in rollout.episodes] == [1.0] * 6


def test_members_of_a_set_and_rollouts_of_a_group_draw_different_streams(make_collector):
    # br-026: identical prompts, different seeds; and the same seeds for whoever asks again.
    def seeds():
        engine = scripted("team")
        make_collector({"team": engine}, seed=5).collect(make_jobs(2, groups=2), SAMPLING)
        return {request.request_id: request.seed for request in engine.requests}

    first = seeds()
    assert len(set(first.values())) == len(first) == 2 * 2 * 5
    assert seeds() == first


def test_another_run_seed_draws_other_streams(make_collector):
    engines = [scripted("team") for _ in range(2)]
    for seed, engine in enumerate(engines):
        make_collector({"team": engine}, seed=seed).collect(make_jobs(1), SAMPLING)
    assert {r.seed for r in engines[0].requests}.isdisjoint(r.seed for r in engines[1].requests)


def test_a_hanging_environment_is_dropped_and_never_used_again(make_collector, release):
    tasks = Troubled({1: release.wait})
    collector = make_collector(tasks=tasks, step_timeout_s=2.0)
    rollout = collector.collect(make_jobs(3), SAMPLING)
    assert [episode.task_id.rpartition("/")[2] for episode in rollout.episodes] == ["0", "2"]
    assert [failed.job.task_index for failed in rollout.failed] == [1]
    assert "over 2 s" in rollout.failed[0].reason
    assert rollout.failed[0].is_expired
    assert rollout.failed[0].num_events == 2
    again = collector.collect([make_jobs(3)[0], make_jobs(3)[2]], SAMPLING)
    assert len(again.episodes) == 2


def test_hanging_environments_do_not_use_up_the_workers(make_collector, release):
    tasks = Troubled(dict.fromkeys(range(6), release.wait))
    rollout = make_collector(tasks=tasks, step_timeout_s=2.0, num_workers=2).collect(make_jobs(8), SAMPLING)
    assert [episode.task_id.rpartition("/")[2] for episode in rollout.episodes] == ["6", "7"]


def test_waiting_for_a_worker_does_not_count_against_the_step_limit(make_collector):
    tasks = Troubled(dict.fromkeys(range(8), lambda: time.sleep(0.3)))
    rollout = make_collector(tasks=tasks, step_timeout_s=2.0, num_workers=1).collect(make_jobs(8), SAMPLING)
    assert len(rollout.episodes) == 8  # 2.4 s in one queue, 0.3 s each


def test_a_failing_tool_is_tried_again_with_the_same_outputs(make_collector):
    calls = []

    def fail_twice():
        calls.append(1)
        if len(calls) < 3:
            raise ToolError("grader away")

    engine = scripted("team")
    rollout = make_collector({"team": engine}, tasks=Troubled({0: fail_twice}), step_retries=2).collect(
        make_jobs(1), SAMPLING
    )
    assert len(calls) == 3
    assert len(rollout.episodes) == 1
    assert engine.num_calls == 3
    assert rollout.num_retries == 2


def test_an_episode_whose_surroundings_stay_broken_is_dropped_and_the_others_finish(make_collector):
    calls = []

    def fail():
        calls.append(1)
        raise ToolError("grader away")

    rollout = make_collector(tasks=Troubled({0: fail}), step_retries=1).collect(make_jobs(3), SAMPLING)
    assert len(rollout.episodes) == 2
    assert len(calls) == 2  # once, and once again
    assert rollout.num_retries == 1
    assert rollout.failed[0].reason == "ToolError: grader away"


def test_a_bug_in_one_episode_does_not_kill_the_batch(make_collector):
    def crash():
        raise ZeroDivisionError("a bug")

    rollout = make_collector(tasks=Troubled({2: crash})).collect(make_jobs(3), SAMPLING)
    assert len(rollout.episodes) == 2
    assert rollout.failed[0].reason == "ZeroDivisionError: a bug"


def test_when_every_episode_fails_the_collection_fails(make_collector):
    def crash():
        raise ToolError("grader away")

    collector = make_collector(tasks=Troubled(dict.fromkeys(range(2), crash)))
    with pytest.raises(SurroundingsError, match="all 2 episodes failed; the first: ToolError: grader away"):
        collector.collect(make_jobs(2), SAMPLING)


def test_an_aborted_response_is_asked_for_again_with_its_own_seed(make_collector):
    seen = {}

    def flaky(request):
        seen.setdefault(request.request_id, []).append(request.seed)
        if request.request_id == "t0/g0/e0/1" and len(seen[request.request_id]) == 1:
            return None
        return answer(request)

    rollout = make_collector({"team": scripted("team", flaky)}).collect(make_jobs(1), SAMPLING)
    assert len(rollout.episodes) == 1
    assert len(seen["t0/g0/e0/1"]) == 2
    assert len(set(seen["t0/g0/e0/1"])) == 1
    assert len(seen["t0/g0/e0/0"]) == 1


def test_an_event_with_a_member_the_engine_gave_up_is_never_completed(make_collector):
    # br-024, br-039: no synthetic token stands in for it; the episode is dropped, not trained on.
    def gives_up(request):
        return None if request.request_id == "t1/g0/e0/2" else answer(request)

    rollout = make_collector({"team": scripted("team", gives_up)}).collect(make_jobs(2), SAMPLING)
    assert [episode.episode_id for episode in rollout.episodes] == ["t0/g0"]
    assert rollout.failed[0].num_events == 0
    assert "member_index [2] (aborted as scripted)" in rollout.failed[0].reason


def test_no_more_episodes_run_at_once_than_allowed(make_collector):
    engine = scripted("team")
    sizes = []
    generate = engine.generate
    engine.generate = lambda requests, sampling: (sizes.append(len(requests)), generate(requests, sampling))[1]
    rollout = make_collector({"team": engine}, max_concurrent=4).collect(make_jobs(10), SAMPLING)
    assert len(rollout.episodes) == 10
    assert max(sizes) <= 4 * 3


def test_a_role_without_a_policy_is_a_clear_error(make_collector):
    with pytest.raises(ConfigError, match="no policy for role 'verifier'"):
        make_collector(roles={"solver": "team"}).collect(make_jobs(1), SAMPLING)


def test_two_jobs_with_one_id_are_refused(make_collector):
    with pytest.raises(ValueError, match="share an episode_id"):
        make_collector().collect([make_jobs(1)[0]] * 2, SAMPLING)


def test_progress_is_reported_up_to_the_last_episode(make_collector):
    seen = []
    make_collector().collect(make_jobs(4), SAMPLING, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)


def test_each_episode_is_handed_over_as_it_ends_even_if_the_collection_fails(make_collector):
    def crash():
        raise ToolError("grader away")

    ended = []
    rollout = make_collector(tasks=Troubled({1: crash}), step_retries=0).collect(
        make_jobs(3), SAMPLING, on_end=ended.append
    )
    assert {id(item) for item in ended} == {id(item) for item in (*rollout.episodes, *rollout.failed)}
    collector = make_collector(tasks=Troubled(dict.fromkeys(range(2), crash)), step_retries=0)
    failed = []
    with pytest.raises(NoEpisodeError):
        collector.collect(make_jobs(2), SAMPLING, on_end=failed.append)
    assert sorted(item.job.episode_id for item in failed) == ["t0/g0", "t1/g0"]


def test_a_thousand_episodes_leave_no_thread_and_no_file_behind(make_collector):
    # br-040
    collector = make_collector()
    collector.collect(make_jobs(10), SAMPLING)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for start in range(0, 1000, 250):
        jobs = [
            EpisodeJob(episode_id=f"j{i}", group_id=f"j{i}", task_index=i, env_seed=i)
            for i in range(start, start + 250)
        ]
        assert len(collector.collect(jobs, SAMPLING).episodes) == 250
    assert threading.active_count() <= threads  # those of earlier tests may end meanwhile
    assert len(os.listdir("/proc/self/fd")) <= files
    collector.close()


def test_derived_seeds_are_the_same_everywhere():
    # The first eight bytes of blake2b(b"0/a/1", digest_size=8) as a big-endian integer, without its lowest bit.
    assert derive_seed(0, "a", 1) == derive_seed("0", "a", "1")
    assert derive_seed(0, "a", 1) != derive_seed(0, "a", 2)
    assert 0 <= derive_seed("x") < 2**63


def test_misuse_of_an_environment_is_raised_and_not_counted_as_a_failed_episode(make_collector):
    beyond = EpisodeJob(episode_id="beyond", group_id="beyond", task_index=10**9, env_seed=0)
    with pytest.raises(EnvMisuseError, match="task_index 1000000000 is outside"):
        make_collector().collect([*make_jobs(2), beyond], SAMPLING)


def _fail_with(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize(("error", "is_traced"), [(ToolError("search is down"), False), (KeyError("lost"), True)])
def test_only_a_fault_in_the_environments_own_code_is_logged_with_its_traceback(
    make_collector, caplog, error, is_traced
):
    make_collector(tasks=Troubled({1: _fail_with(error)}), step_retries=0).collect(make_jobs(2), SAMPLING)
    (record,) = (record for record in caplog.records if "dropped" in record.message)
    assert type(error).__name__ in record.message
    assert bool(record.exc_info) is is_traced


# --- what ends a whole collection ---------------------------------------------------------------------------------


def test_a_response_is_tried_as_often_as_allowed_and_then_its_episode_is_dropped(make_collector):
    tries = []

    def gives_up(request):
        if request.request_id != "t0/g0/e1/0":
            return answer(request)
        tries.append(request.seed)
        return None

    rollout = make_collector({"team": scripted("team", gives_up)}, step_retries=3).collect(make_jobs(2), SAMPLING)
    assert len(tries) == 1 + 3
    assert [(failed.job.episode_id, failed.num_events) for failed in rollout.failed] == [("t0/g0", 1)]
    assert not rollout.failed[0].is_unanswerable


def test_a_hopeless_response_is_not_tried_again_and_its_episode_is_marked(make_collector):
    engine = scripted("team")
    generate, seen = engine.generate, []

    def overlong(requests, sampling):
        seen.extend(request.request_id for request in requests)
        return [
            dataclasses.replace(
                item, finish_reason="abort", token_ids=(), logprobs=(), abort_reason="too long", is_hopeless=True
            )
            if item.request_id == "t1/g0/e0/2"
            else item
            for item in generate(requests, sampling)
        ]

    engine.generate = overlong
    rollout = make_collector({"team": engine}).collect(make_jobs(2), SAMPLING)
    assert seen.count("t1/g0/e0/2") == 1
    assert [failed.is_unanswerable for failed in rollout.failed] == [True]
    assert rollout.failed[0].reason == "event 't1/g0/e0': the engine gave up member_index [2] (too long)"


def test_an_engine_that_fails_as_a_whole_ends_the_collection_and_the_next_one_is_as_new(make_collector):
    expected = make_collector().collect(make_jobs(6), SAMPLING).episodes
    collector = make_collector({"team": scripted("team", failing_calls={1})}, max_concurrent=4)
    with pytest.raises(EngineError, match="call 1 fails as scripted"):
        collector.collect(make_jobs(6), SAMPLING)
    assert collector.collect(make_jobs(6), SAMPLING).episodes == expected


def test_an_interrupt_ends_the_collection_and_the_next_one_is_as_new(make_collector, release, interruptible):
    expected = make_collector().collect(make_jobs(4), SAMPLING).episodes
    interrupts = iter([True])

    def interrupted(request):
        if request.request_id == "t2/g0/e1/0" and next(interrupts, False):
            os.kill(os.getpid(), signal.SIGINT)
            release.wait(0.5)
        return answer(request)

    collector = make_collector({"team": scripted("team", interrupted)})
    with pytest.raises(KeyboardInterrupt):
        collector.collect(make_jobs(4), SAMPLING)
    assert collector.collect(make_jobs(4), SAMPLING).episodes == expected


def test_an_environment_that_asks_for_the_end_ends_the_collection(make_collector):
    trouble = {1: _fail_with(SystemExit(3))}
    tasks = Troubled(trouble)
    collector = make_collector(tasks=tasks)
    with pytest.raises(SystemExit):
        collector.collect(make_jobs(3), SAMPLING)
    trouble.clear()
    assert len(collector.collect(make_jobs(3), SAMPLING).episodes) == 3


def test_hung_environments_of_an_ended_collection_do_not_use_up_the_workers(make_collector, release, interruptible):
    both_hang = threading.Barrier(2)

    def hang():
        if both_hang.wait(20.0) == 0:
            os.kill(os.getpid(), signal.SIGINT)
        release.wait()

    tasks = Troubled({0: hang, 1: hang})
    collector = make_collector(tasks=tasks, num_workers=2)
    with pytest.raises(KeyboardInterrupt):
        collector.collect(make_jobs(2), SAMPLING)
    tasks.trouble = {}
    assert len(collector.collect(make_jobs(3), SAMPLING).episodes) == 3
