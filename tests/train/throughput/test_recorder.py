"""Phases and spans of one process."""

from __future__ import annotations

import threading
import time

import pytest

from srpo_train.throughput.recorder import Recorder, Work


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""

    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_a_phase_within_another_is_counted_once(clock):
    recorder = Recorder()
    with recorder.phase("evaluate"):
        clock.now += 1.0
        with recorder.phase("score"):
            clock.now += 3.0
            with recorder.phase("backward"):
                clock.now += 5.0
        clock.now += 1.0
    seconds = {name: work.seconds for name, work in recorder.take_work().items()}
    assert seconds == {"evaluate": 2.0, "score": 3.0, "backward": 5.0}
    assert recorder.take_work() == {}


def test_a_phase_that_fails_is_counted_and_over(clock):
    recorder = Recorder()
    with pytest.raises(ValueError, match="broken"), recorder.phase("score"):
        clock.now += 2.0
        raise ValueError("broken")
    with recorder.phase("score"):
        clock.now += 1.0
    assert recorder.take_work()["score"].seconds == 3.0


def test_phases_of_threads_do_not_mix(recorder):
    inner = threading.Event()

    def work():
        with recorder.phase("generate"):
            inner.wait(5)

    thread = threading.Thread(target=work)
    thread.start()
    with recorder.phase("backward"):
        inner.set()
        thread.join()
    work_done = recorder.take_work()
    assert work_done["backward"].seconds >= 0  # not less by what the other thread did meanwhile
    assert work_done.keys() == {"backward", "generate"}


def test_work_adds_up(recorder):
    recorder.count("score", Work(num_tokens=3, num_slots=4, model_flops=10.0))
    recorder.count("score", Work(num_tokens=5, num_slots=5, hardware_flops=2.0))
    assert recorder.take_work()["score"] == Work(num_tokens=8, num_slots=9, model_flops=10.0, hardware_flops=2.0)


def test_spans_are_kept_only_while_tracing(recorder):
    with recorder.span("before"):
        pass
    recorder.is_tracing = True
    with recorder.phase("score", rows=2), recorder.span("pass", track="engine team", tokens=7):
        pass
    recorder.is_tracing = False
    with recorder.span("after"):
        pass
    outer, inner = recorder.take_spans()
    assert (outer.name, outer.category, outer.track, outer.args) == ("score", "score", "trainer", {"rows": 2})
    assert (inner.name, inner.track, inner.args) == ("pass", "engine team", {"tokens": 7})
    assert outer.begun_s <= inner.begun_s
    assert recorder.take_spans() == []


def test_a_span_of_a_thread_lies_on_the_track_of_its_name(recorder):
    recorder.is_tracing = True

    def work():
        with recorder.span("move"):
            pass

    thread = threading.Thread(target=work, name="environment 3")
    thread.start()
    thread.join()
    assert [span.track for span in recorder.take_spans()] == ["environment 3"]


def test_clocks_of_spans_are_those_of_the_day(recorder):
    recorder.is_tracing = True
    with recorder.span("now"):
        pass
    assert recorder.take_spans()[0].begun_s == pytest.approx(time.time(), abs=5)


def test_what_is_not_traced_costs_next_to_nothing(recorder):
    begun = time.process_time()
    for _ in range(10_000):
        with recorder.span("pass", "pass", waits=True, rows=3):
            pass
    assert (time.process_time() - begun) / 10_000 < 20e-6
