"""Seconds that are told while they pass, from any thread."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from srpo_train.overlap.stopwatch import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_block_counts_while_it_is_open_and_once():
    clock = Clock()
    watch = Stopwatch(clock)
    assert watch.seconds == 0.0
    with watch:
        clock.now += 2.0
        assert watch.seconds == 2.0
        clock.now += 1.0
    clock.now += 50.0
    assert watch.seconds == 3.0
    with watch:
        clock.now += 4.0
        assert watch.seconds == 7.0
    assert watch.seconds == 7.0


def test_a_block_that_fails_is_over():
    clock = Clock()
    watch = Stopwatch(clock)
    try:
        with watch:
            clock.now += 1.0
            raise ValueError
    except ValueError:
        clock.now += 1.0
    assert watch.seconds == 1.0


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 10.0)), max_size=20))
def test_between_two_readings_it_never_counts_more_than_the_time(steps):
    clock = Clock()
    watch = Stopwatch(clock)
    for is_open, seconds in steps:
        before, then = watch.seconds, clock.now
        if is_open:
            with watch:
                clock.now += seconds
        else:
            clock.now += seconds
        assert -1e-9 <= watch.seconds - before <= clock.now - then + 1e-9


def test_readings_from_another_thread_never_go_back():
    watch, is_over = Stopwatch(), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            with watch:
                pass

    thread = threading.Thread(target=work)
    thread.start()
    readings = [watch.seconds for _ in range(20_000)]
    is_over.set()
    thread.join()
    assert readings == sorted(readings)
