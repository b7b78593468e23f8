"""Daemon workers: results come back, errors come back, a hanging call can be left behind."""

from __future__ import annotations

import threading
import time

import pytest

from srpo_train.workers import StepWorkers


@pytest.fixture
def workers():
    pool = StepWorkers(2)
    yield pool
    pool.close()


def test_results_carry_the_key_of_their_call(workers):
    keys = {workers.submit(lambda value=value: value * 10): value for value in range(5)}
    arrived = [workers.wait(60.0) for _ in range(5)]
    assert {finished.key: finished.value for finished in arrived} == {key: value * 10 for key, value in keys.items()}


def test_an_exception_is_a_result(workers):
    def fail():
        raise ValueError("broken")

    workers.submit(fail)
    finished = workers.wait(60.0)
    assert isinstance(finished.error, ValueError)
    assert finished.value is None


def test_waiting_ends_when_nothing_finishes(workers):
    assert workers.wait(0.01) is None


def test_an_abandoned_call_does_not_use_up_a_worker(workers):
    release, begun = threading.Event(), threading.Barrier(3)
    hung = [workers.submit(lambda: (begun.wait(), release.wait())) for _ in range(2)]
    begun.wait(60.0)
    workers.submit(lambda: "moved")
    assert workers.wait(0.05) is None
    workers.abandon(hung[0])
    assert workers.wait(60.0).value == "moved"
    release.set()
    assert workers.wait(60.0).key == hung[1]
    assert workers.wait(0.05) is None


def test_the_thread_of_an_abandoned_call_ends_with_it(workers):
    release, begun = threading.Event(), threading.Event()
    key = workers.submit(lambda: (begun.set(), release.wait()))
    assert begun.wait(60.0)
    count = threading.active_count()
    workers.abandon(key)
    assert threading.active_count() == count + 1
    release.set()
    deadline = time.monotonic() + 60.0
    while threading.active_count() > count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() == count


def test_an_abandoned_call_that_waits_never_runs():
    pool, release, ran = StepWorkers(1), threading.Event(), []
    pool.submit(release.wait)
    waiting = pool.submit(lambda: ran.append("abandoned"))
    last = pool.submit(lambda: ran.append("last"))
    pool.abandon(waiting)
    release.set()
    assert [pool.wait(60.0).key for _ in range(2)] == [0, last]
    assert ran == ["last"]
    pool.close()


def test_abandoning_a_finished_call_changes_nothing(workers):
    key = workers.submit(lambda: "done")
    assert workers.wait(60.0).key == key
    count = threading.active_count()
    workers.abandon(key)
    assert threading.active_count() == count
    assert workers.submit(lambda: None) == key + 1
    assert workers.wait(60.0).key == key + 1


def test_closing_twice_is_harmless_and_ends_the_threads():
    before = set(threading.enumerate())
    pool = StepWorkers(3)
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    pool.close()
    pool.close()
    for thread in started:
        thread.join(5.0)
        assert not thread.is_alive()
