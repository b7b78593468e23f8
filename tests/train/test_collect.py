"""The collector: batches by policy, whole events, nothing stalls or kills a batch."""

from __future__ import annotations

import os
import threading
import time

import pytest

from srpo_envs.errors import ConfigError, EnvMisuseError, SurroundingsError, ToolError
from srpo_envs.prompting import load_prompt
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector, EpisodeJob, derive_seed
from srpo_train.engines.base import Sampling
from srpo_train.engines.scripted import ScriptedEngine

SAMPLING = Sampling()
SHARED = {"*": "team"}
_OPEN: list[Collector] = []


@pytest.fixture(autouse=True)
def close_collectors():
    yield
    while _OPEN:
        _OPEN.pop().close()


def role_of(request):
    """Which role's template a prompt ends with."""
    endings = {role: load_prompt("arithmetic", role).rpartition("$context")[2] for role in ("solver", "verifier")}
    return next((role for role, ending in endings.items() if request.prompt.endswith(ending)), "aggregator")


class Slow(Arithmetic):
    """Arithmetic whose grading of chosen tasks sleeps, hangs or fails."""

    def __init__(self, trouble=None, **kwargs):
        super().__init__(**kwargs)
        self.trouble = trouble or {}

    def grade(self, task, answer):
        action = self.trouble.get(int(task.task_id.rpartition("/")[2]))
        if action:
            action()
        return super().grade(task, answer)


def answer(request):
    """A team that answers 4 at once: every first verdict approves."""
    if role_of(request) == "verifier":
        return "<verify>approve</verify>"
    return r"\boxed{4}"


def scripted(policy_id, script):
    # One byte is one token here; the arithmetic limits count the embedded policy's tokens.
    return ScriptedEngine(policy_id, script, respects_limits=False)


def make_collector(engines=None, roles=SHARED, tasks=None, **settings):
    family = tasks or Arithmetic()
    collector = Collector(
        lambda: SolverVerifier(family, num_solvers=3),
        engines or {"team": scripted("team", answer)},
        roles,
        **settings,
    )
    _OPEN.append(collector)
    return collector


def make_jobs(count, groups=1):
    return [
        EpisodeJob(episode_id=f"t{task}/g{member}", group_id=f"t{task}", task_index=task, env_seed=task)
        for task in range(count)
        for member in range(groups)
    ]


@pytest.fixture
def release():
    """An event that frees whatever a test left hanging."""
    event = threading.Event()
    yield event
    event.set()


def test_episodes_come_back_complete_and_in_job_order():
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


def test_all_pending_events_of_a_policy_make_one_batch():
    engine = scripted("team", answer)
    make_collector({"team": engine}).collect(make_jobs(10), SAMPLING)
    assert engine.num_calls == 3  # drafts of all episodes, then verdicts, then answers
    assert len(engine.requests) == 10 * (3 + 1 + 1)


def test_isolated_policies_answer_for_their_roles_only():
    engines = {name: scripted(name, answer) for name in ("drafts", "rest")}
    rollout = make_collector(engines, {"solver": "drafts", "*": "rest"}).collect(make_jobs(2), SAMPLING)
    assert {role_of(request) for request in engines["drafts"].requests} == {"solver"}
    policies = {
        (member.role, member.policy_id) for e in rollout.episodes for event in e.events for member in event.members
    }
    assert policies == {("solver", "drafts"), ("verifier", "rest"), ("aggregator", "rest")}


def test_sampled_tokens_and_logprobs_reach_the_record_unchanged():
    member = make_collector().collect(make_jobs(1), SAMPLING).episodes[0].events[0].members[0]
    # The scripted tokenizer writes UTF-8 bytes and the end token 256.
    assert member.token_ids == (*rb"\boxed{4}", 256)
    assert len(member.behavior_logprobs) == len(member.token_mask) == len(member.token_ids) == 10


def test_each_episode_is_graded_against_its_own_gold():
    # br-021: whatever finishes first, a reward belongs to the question of its own episode.
    tasks = Slow({0: lambda: time.sleep(0.2), 2: lambda: time.sleep(0.1)})
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


def test_members_of_a_set_and_rollouts_of_a_group_draw_different_streams():
    # br-026: identical prompts, different seeds; and the same seeds for whoever asks again.
    def seeds():
        engine = scripted("team", answer)
        make_collector({"team": engine}, seed=5).collect(make_jobs(2, groups=2), SAMPLING)
        return [request.seed for request in engine.requests]

    first = seeds()
    assert len(set(first)) == len(first)
    assert seeds() == first


def test_another_run_seed_draws_other_streams():
    engines = [scripted("team", answer) for _ in range(2)]
    for seed, engine in enumerate(engines):
        make_collector({"team": engine}, seed=seed).collect(make_jobs(1), SAMPLING)
    assert {r.seed for r in engines[0].requests}.isdisjoint(r.seed for r in engines[1].requests)


def test_a_straggler_joins_a_later_round_and_is_counted(release):
    class SlowDraft(SolverVerifier):
        def schedule(self, task):
            drafts = yield self.ask("solver", count=3, context=self.context())
            if task.task_id.endswith("/0"):
                release.wait(5.0)
            drafts = yield self.ask("solver", count=3, context=self.context(drafts))
            (final,) = yield self.ask("aggregator", context=self.context(drafts))
            return self.outcome(final)

    engine = scripted("team", answer)
    collector = Collector(lambda: SlowDraft(Arithmetic()), {"team": engine}, SHARED, straggler_grace_s=0.05)
    _OPEN.append(collector)
    threading.Timer(0.3, release.set).start()
    rollout = collector.collect(make_jobs(4), SAMPLING)
    assert len(rollout.episodes) == 4
    assert rollout.num_stragglers == 1
    # Two rounds go on without the straggler, which counts once; then its own two follow: five rounds instead of three.
    assert engine.num_calls == 5
    assert engine.requests[-1].request_id.startswith("t0/")


def test_a_batch_is_ordered_by_job_whatever_moves_first():
    class LateFirst(SolverVerifier):
        def schedule(self, task):
            drafts = yield self.ask("solver", count=1, context=self.context())
            time.sleep(0.05 * (3 - int(task.task_id.rpartition("/")[2])))
            (final,) = yield self.ask("aggregator", context=self.context(drafts))
            return self.outcome(final)

    engine = scripted("team", answer)
    collector = Collector(lambda: LateFirst(Arithmetic()), {"team": engine}, SHARED)
    _OPEN.append(collector)
    collector.collect(make_jobs(4), SAMPLING)
    assert [request.request_id[:2] for request in engine.requests] == ["t0", "t1", "t2", "t3"] * 2


def test_a_hanging_environment_is_dropped_and_never_used_again(release):
    tasks = Slow({1: release.wait})
    collector = make_collector(tasks=tasks, step_timeout_s=0.2)
    rollout = collector.collect(make_jobs(3), SAMPLING)
    assert [episode.task_id.rpartition("/")[2] for episode in rollout.episodes] == ["0", "2"]
    assert [failed.job.task_index for failed in rollout.failed] == [1]
    assert "over 0.2 s" in rollout.failed[0].reason
    assert rollout.failed[0].num_events == 2
    again = collector.collect([make_jobs(3)[0], make_jobs(3)[2]], SAMPLING)
    assert len(again.episodes) == 2


def test_hanging_environments_do_not_use_up_the_workers(release):
    tasks = Slow(dict.fromkeys(range(6), release.wait))
    rollout = make_collector(tasks=tasks, step_timeout_s=0.2, num_workers=2).collect(make_jobs(8), SAMPLING)
    assert [episode.task_id.rpartition("/")[2] for episode in rollout.episodes] == ["6", "7"]


def test_waiting_for_a_worker_does_not_count_against_the_step_limit():
    tasks = Slow(dict.fromkeys(range(8), lambda: time.sleep(0.1)))
    rollout = make_collector(tasks=tasks, step_timeout_s=0.4, num_workers=1).collect(make_jobs(8), SAMPLING)
    assert len(rollout.episodes) == 8  # 0.8 s in one queue, 0.1 s each


def test_a_failing_tool_is_tried_again_with_the_same_outputs():
    calls = []

    def fail_twice():
        calls.append(1)
        if len(calls) < 3:
            raise ToolError("grader away")

    engine = scripted("team", answer)
    rollout = make_collector({"team": engine}, tasks=Slow({0: fail_twice}), step_retries=2).collect(
        make_jobs(1), SAMPLING
    )
    assert len(calls) == 3
    assert len(rollout.episodes) == 1
    assert engine.num_calls == 3


def test_an_episode_whose_surroundings_stay_broken_is_dropped_and_the_others_finish():
    calls = []

    def fail():
        calls.append(1)
        raise ToolError("grader away")

    rollout = make_collector(tasks=Slow({0: fail}), step_retries=1).collect(make_jobs(3), SAMPLING)
    assert len(rollout.episodes) == 2
    assert len(calls) == 2  # once, and once again
    assert rollout.failed[0].reason == "ToolError: grader away"


def test_a_bug_in_one_episode_does_not_kill_the_batch():
    def crash():
        raise ZeroDivisionError("a bug")

    rollout = make_collector(tasks=Slow({2: crash})).collect(make_jobs(3), SAMPLING)
    assert len(rollout.episodes) == 2
    assert rollout.failed[0].reason == "ZeroDivisionError: a bug"


def test_when_every_episode_fails_the_collection_fails():
    def crash():
        raise ToolError("grader away")

    collector = make_collector(tasks=Slow(dict.fromkeys(range(2), crash)))
    with pytest.raises(SurroundingsError, match="all 2 episodes failed; the first: ToolError: grader away"):
        collector.collect(make_jobs(2), SAMPLING)


def test_an_aborted_response_is_asked_for_again_with_its_own_seed():
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


def test_an_event_with_a_member_the_engine_gave_up_is_never_completed():
    # br-024, br-039: no synthetic token stands in for it; the episode is dropped, not trained on.
    def gives_up(request):
        return None if request.request_id == "t1/g0/e0/2" else answer(request)

    rollout = make_collector({"team": scripted("team", gives_up)}).collect(make_jobs(2), SAMPLING)
    assert [episode.episode_id for episode in rollout.episodes] == ["t0/g0"]
    assert rollout.failed[0].num_events == 0
    assert "member_index [2] (aborted as scripted)" in rollout.failed[0].reason


def test_no_more_episodes_run_at_once_than_allowed():
    engine = scripted("team", answer)
    sizes = []
    generate = engine.generate
    engine.generate = lambda requests, sampling: (sizes.append(len(requests)), generate(requests, sampling))[1]
    rollout = make_collector({"team": engine}, max_concurrent=4).collect(make_jobs(10), SAMPLING)
    assert len(rollout.episodes) == 10
    assert max(sizes) <= 4 * 3


def test_a_role_without_a_policy_is_a_clear_error():
    with pytest.raises(ConfigError, match="no policy for role 'verifier'"):
        make_collector(roles={"solver": "team"}).collect(make_jobs(1), SAMPLING)


def test_two_jobs_with_one_id_are_refused():
    with pytest.raises(ValueError, match="share an episode_id"):
        make_collector().collect([make_jobs(1)[0]] * 2, SAMPLING)


def test_progress_is_reported_up_to_the_last_episode():
    seen = []
    make_collector().collect(make_jobs(4), SAMPLING, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)


def test_a_thousand_episodes_leave_no_thread_and_no_file_behind():
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


def test_misuse_of_an_environment_is_raised_and_not_counted_as_a_failed_episode():
    beyond = EpisodeJob(episode_id="beyond", group_id="beyond", task_index=10**9, env_seed=0)
    with pytest.raises(EnvMisuseError, match="task_index 1000000000 is outside"):
        make_collector().collect([*make_jobs(2), beyond], SAMPLING)


def _fail_with(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize(("error", "is_traced"), [(ToolError("search is down"), False), (KeyError("lost"), True)])
def test_only_a_fault_in_the_environments_own_code_is_logged_with_its_traceback(caplog, error, is_traced):
    make_collector(tasks=Slow({1: _fail_with(error)}), step_retries=0).collect(make_jobs(2), SAMPLING)
    (record,) = (record for record in caplog.records if "dropped" in record.message)
    assert type(error).__name__ in record.message
    assert bool(record.exc_info) is is_traced
