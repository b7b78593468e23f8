"""Daemon workers: results come back, errors come back, a hanging call can be left behind."""

from __future__ import annotations

import threading

import pytest

from srpo_train.workers import StepWorkers


@pytest.fixture
def workers():
    pool = StepWorkers(2)
    yield pool
    pool.close()


def test_results_carry_the_key_of_their_call(workers):
    keys = {workers.submit(lambda value=value: value * 10): value for value in range(5)}
    arrived = [workers.wait(5.0) for _ in range(5)]
    assert {finished.key: finished.value for finished in arrived} == {key: value * 10 for key, value in keys.items()}


def test_an_exception_is_a_result(workers):
    def fail():
        raise ValueError("broken")

    workers.submit(fail)
    finished = workers.wait(5.0)
    assert isinstance(finished.error, ValueError)
    assert finished.value is None


def test_waiting_ends_when_nothing_finishes(workers):
    assert workers.wait(0.01) is None


def test_a_replaced_worker_keeps_the_pool_moving_while_all_others_hang(workers):
    release = threading.Event()
    for _ in range(2):
        workers.submit(release.wait)
    workers.submit(lambda: "moved")
    assert workers.wait(0.05) is None
    workers.replace_one()
    assert workers.wait(5.0).value == "moved"
    release.set()


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
