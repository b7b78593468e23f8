"""Both orders of work give the same records wherever a response depends on its request and seed alone."""

from __future__ import annotations

import random
import time

import pytest
from collect_world import SAMPLING, ShuffledEngine, make_jobs, role_of, scripted
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.errors import SurroundingsError
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.collect import Collector
from srpo_train.engines.simulated import LogNormalLengths, SimulatedEngine

CHOICES = {
    "router": ["<route>1</route>", "<route>1, 3</route>", "<route>2, 3</route>", "?"],
    "verifier": ["<verify>approve</verify>", "<verify>reject</verify>", "?"],
}
ROLES = {"router": "judge", "verifier": "judge", "*": "worker"}


def drawn(request):
    """An answer that its seed alone decides: a verdict, a choice of solvers, a result, or nothing readable."""
    rng = random.Random(request.seed)
    return rng.choice(CHOICES.get(role_of(request)) or [rf"\boxed{{{rng.randrange(10)}}}", "no idea"])


class Flaky:
    """Gives some requests up, a number of times that their seed decides, and then answers."""

    def __init__(self):
        self.tries = {}

    def __call__(self, request):
        tries = self.tries[request.request_id] = self.tries.get(request.request_id, -1) + 1
        # One in 40 is given up more often than it is tried, one in 10 recovers.
        due = random.Random(~request.seed).choices([0, 1, 2, 9], [85, 6, 4, 2.5])[0]
        return None if tries < due else drawn(request)


class Unsteady(Arithmetic):
    """Grading takes its time, and fails for a task in five."""

    def __init__(self, delays):
        super().__init__()
        self._delays = delays

    def grade(self, task, answer):
        time.sleep(self._delays.random() * 0.002)
        if int(task.task_id.rpartition("/")[2]) % 5 == 4:
            raise ValueError("a bug")  # failing surroundings would be tried again, after a pause
        return super().grade(task, answer)


def collect(mode, engines, jobs, delays, **settings):
    tasks = Unsteady(delays)
    collector = Collector(
        lambda: SolverVerifier(tasks, variant="routed", num_solvers=3, max_rounds=3),
        engines,
        ROLES,
        mode=mode,
        num_workers=3,
        step_retries=2,
        **settings,
    )
    try:
        rollout = collector.collect(jobs, SAMPLING)
        return rollout.episodes, rollout.failed
    except SurroundingsError as error:  # not one episode came through
        return str(error)
    finally:
        collector.close()


@settings(max_examples=25, deadline=None)
@given(
    run_seed=st.integers(0, 2**20),
    order_seed=st.integers(0, 2**20),
    num_jobs=st.integers(1, 12),
    most=st.integers(1, 5),
)
def test_any_completion_order_gives_the_records_of_rounds(run_seed, order_seed, num_jobs, most):
    order = random.Random(order_seed)
    jobs = make_jobs(num_jobs, groups=2)
    lockstep = {name: scripted(name, Flaky()) for name in ("judge", "worker")}
    expected = collect("rounds", lockstep, jobs, random.Random(0), seed=run_seed)
    streams = {name: ShuffledEngine(name, Flaky(), order) for name in ("judge", "worker")}
    assert collect("asynchronous", streams, jobs, order, seed=run_seed, max_concurrent=most) == expected
    assert not any(stream.under_way for stream in streams.values())
    assert {name: stream._scripted._answer.tries for name, stream in streams.items()} == {
        name: engine._answer.tries for name, engine in lockstep.items()
    }


def test_the_cases_above_are_varied():
    engines = {name: scripted(name, Flaky()) for name in ("judge", "worker")}
    episodes, failed = collect("rounds", engines, make_jobs(40), random.Random(0))
    assert {event.cardinality for episode in episodes for event in episode.events} == {1, 2}
    assert len({len(episode.events) for episode in episodes}) > 3
    assert {episode.reward for episode in episodes} == {0.0, 1.0}
    reasons = [episode.reason for episode in failed]
    assert any("engine gave up" in reason for reason in reasons)
    assert any("a bug" in reason for reason in reasons)


@pytest.mark.parametrize("max_batch_size", [3, 64])
def test_continuous_batching_gives_the_records_of_rounds(max_batch_size):
    def simulated():
        lengths = LogNormalLengths(median=5, sigma=1.0)
        return {
            name: SimulatedEngine(name, drawn, lengths, max_batch_size=max_batch_size, step_s=1e-4)
            for name in ("judge", "worker")
        }

    jobs = make_jobs(8, groups=2)
    expected = collect("rounds", simulated(), jobs, random.Random(0))
    assert collect("asynchronous", simulated(), jobs, random.Random(1)) == expected
    lengths = {len(m.token_ids) for episode in expected[0] for event in episode.events for m in event.members}
    assert len(lengths) > 5
