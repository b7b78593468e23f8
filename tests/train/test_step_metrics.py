"""The clocks of a training step, with time that passes as told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from srpo_train.overlap.stopwatch import Stopwatch
from srpo_train.step_metrics import StepClock

ROLLOUT = SimpleNamespace(episodes=(), generate_s=0.0, env_s=0.0)


class Timeline:
    """Time, a source of rollouts, and the trainer: everything passes one second after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("srpo_train.step_metrics.time.monotonic", lambda: self.now)
        self.watch = Stopwatch(lambda: self.now)

    @property
    def collecting_s(self) -> float:
        return self.watch.seconds

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    return Timeline(monkeypatch)


def metrics_of(clock: StepClock) -> dict[str, float]:
    clock.stop()
    return clock.metrics(ROLLOUT, {})


def one(rollout, wait):
    """A source's `take`: it waits as told, then has a rollout."""
    wait()
    yield rollout


def test_in_turn_nothing_overlaps(timeline):
    clock = StepClock(timeline)
    for _ in clock.waiting(one(ROLLOUT, lambda: timeline.pass_by(3.0))):
        timeline.pass_by(1.0)
    found = metrics_of(clock)
    assert (found["perf/overlap_share"], found["time/wait_s"], found["time/update_s"]) == (0.0, 3.0, 1.0)


def test_rollouts_count_where_the_trainer_does_not_wait_for_them(timeline):
    # The first rollouts end after 2 s of waiting; the next ones go on for 3 of the 4 s of the update.
    clock = StepClock(timeline)

    def wait():
        with timeline.watch:
            timeline.pass_by(2.0)

    for _ in clock.waiting(one(ROLLOUT, wait)):
        with timeline.watch:
            timeline.pass_by(3.0)
        timeline.pass_by(1.0)
    assert metrics_of(clock)["perf/overlap_share"] == pytest.approx(3.0 / 6.0)


def test_a_turn_longer_than_the_step_counts_for_the_step_alone(timeline):
    # It began 100 s before the step, and ends after it: all of the step was rollouts and update.
    with timeline.watch:
        timeline.pass_by(100.0)
        clock = StepClock(timeline)
        for _ in clock.waiting(one(ROLLOUT, lambda: None)):
            timeline.pass_by(2.0)
        found = metrics_of(clock)
        timeline.pass_by(100.0)
    assert found["perf/overlap_share"] == 1.0


def test_a_turn_that_ends_while_the_trainer_waits_counts_for_the_update_before(timeline):
    # 2 s of the first part's update and 1 s of waiting for the second part lie within one turn.
    clock = StepClock(timeline)

    def parts():
        yield ROLLOUT
        timeline.pass_by(1.0)
        timeline.watch.__exit__()
        yield ROLLOUT

    for number, _ in enumerate(clock.waiting(parts())):
        if number == 0:
            timeline.watch.__enter__()
        timeline.pass_by(2.0)
    assert metrics_of(clock)["perf/overlap_share"] == pytest.approx(2.0 / 5.0)


def test_what_went_on_between_two_steps_counts_for_neither(timeline):
    with timeline.watch:
        timeline.pass_by(7.0)  # an evaluation, a checkpoint
    clock = StepClock(timeline)
    for _ in clock.waiting(one(ROLLOUT, lambda: None)):
        timeline.pass_by(2.0)
    assert metrics_of(clock)["perf/overlap_share"] == 0.0
