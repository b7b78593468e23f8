"""The lock-step collector: one batch per policy and round, the same in every run."""

from __future__ import annotations

import threading
import time

import pytest
from collect_world import SAMPLING, answer, make_jobs, role_of, scripted

from srpo_envs.errors import ConfigError
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector


@pytest.fixture
def collect():
    """Collects from a workflow in rounds."""
    collectors = []

    def run(workflow, engine, num_jobs, **settings):
        collectors.append(Collector(lambda: workflow(Arithmetic()), {"team": engine}, {"*": "team"}, **settings))
        return collectors[-1].collect(make_jobs(num_jobs), SAMPLING)

    yield run
    for collector in collectors:
        collector.close()


def test_all_pending_events_of_a_policy_make_one_batch(collect):
    engine = scripted("team")
    collect(SolverVerifier, engine, 10)
    assert engine.num_calls == 3  # drafts of all episodes, then verdicts, then answers
    assert len(engine.requests) == 10 * (3 + 1 + 1)


def test_a_straggler_joins_a_later_round_and_is_counted(collect):
    release = threading.Event()

    class SlowDraft(SolverVerifier):
        def schedule(self, task):
            drafts = yield self.ask("solver", count=3, context=self.context())
            if task.task_id.endswith("/0"):
                release.wait(60.0)
            drafts = yield self.ask("solver", count=3, context=self.context(drafts))
            (final,) = yield self.ask("aggregator", context=self.context(drafts))
            return self.outcome(final)

    def answer_and_release(request):
        if role_of(request) == "aggregator":  # the others' last round
            release.set()
        return answer(request)

    engine = scripted("team", answer_and_release)
    rollout = collect(SlowDraft, engine, 4, straggler_grace_s=1.0)
    assert len(rollout.episodes) == 4
    assert rollout.num_stragglers == 1
    # Two rounds go on without the straggler, which counts once; then its own two follow: five rounds instead of three.
    assert engine.num_calls == 5
    assert engine.requests[-1].request_id.startswith("t0/")


def test_a_batch_is_ordered_by_job_whatever_moves_first(collect):
    class LateFirst(SolverVerifier):
        def schedule(self, task):
            drafts = yield self.ask("solver", count=1, context=self.context())
            time.sleep(0.05 * (3 - int(task.task_id.rpartition("/")[2])))
            (final,) = yield self.ask("aggregator", context=self.context(drafts))
            return self.outcome(final)

    engine = scripted("team")
    collect(LateFirst, engine, 4)
    assert [request.request_id[:2] for request in engine.requests] == ["t0", "t1", "t2", "t3"] * 2


def test_groups_cannot_be_cut_short_in_rounds():
    collector = Collector(lambda: SolverVerifier(Arithmetic()), {"team": scripted("team")}, {"*": "team"})
    with pytest.raises(ConfigError, match="over-sampled groups need mode 'asynchronous'"):
        collector.collect(make_jobs(2), SAMPLING, keep_per_group=1)
    collector.close()
