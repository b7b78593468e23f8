"""Simulated time and engines against what can be worked out by hand."""

from __future__ import annotations

import pytest

from srpo_train.simulation.clock import Clock
from srpo_train.simulation.engines import EngineSpeed, SimulatedReplica

SPEED = EngineSpeed(step_s=1.0, step_s_per_row=0.5, prefill_s_per_token=0.0, max_rows=8)


def ends(requests, speed=SPEED, stall=None):
    """Time at which each (arrival, prompt tokens, tokens) is done."""
    clock, done = Clock(), {}
    replica = SimulatedReplica(clock, speed)
    for name, (arrival, num_prompt_tokens, num_tokens) in enumerate(requests):

        def arrive(name=name, prompt=num_prompt_tokens, tokens=num_tokens):
            replica.submit(prompt, tokens, lambda: done.__setitem__(name, clock.now))

        clock.after(arrival, arrive)
    if stall:
        clock.after(stall[0], lambda: replica.stall(stall[1]))
    clock.run(lambda: False)
    return [done[name] for name in range(len(requests))], replica


def test_things_happen_in_order_and_equal_times_in_the_order_they_were_set():
    clock, seen = Clock(), []
    for delay, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        clock.after(delay, lambda name=name: seen.append((name, clock.now)))
    clock.run(lambda: False)
    assert seen == [("a", 1.0), ("b", 1.0), ("c", 2.0)]


def test_time_stops_when_it_is_over():
    clock, seen = Clock(), []
    for delay in (1.0, 2.0, 3.0):
        clock.after(delay, lambda: seen.append(clock.now))
    clock.run(lambda: len(seen) == 2)
    assert (seen, clock.now) == ([1.0, 2.0], 2.0)


def test_a_response_alone_takes_its_steps():
    assert ends([(0.0, 0, 10)])[0] == pytest.approx([15.0])  # 10 * (1 + 0.5)


def test_rows_slow_each_other_down_and_leave_one_by_one():
    # Both for 10 steps of 2 s; then the longer one for 10 of 1.5 s.
    (short, long), replica = ends([(0.0, 0, 10), (0.0, 0, 20)])
    assert (short, long) == pytest.approx((20.0, 35.0))
    assert replica.busy_s == pytest.approx(35.0)
    assert replica.row_s == pytest.approx(2 * 20.0 + 15.0)


def test_a_row_that_joins_later_shares_from_then_on():
    # 4 steps alone take 6 s; 6 together 12 s; the second has 4 left, alone, for 6 s.
    assert ends([(0.0, 0, 10), (6.0, 0, 10)])[0] == pytest.approx([18.0, 24.0])


def test_more_requests_than_seats_wait_in_order():
    narrow = EngineSpeed(step_s=1.0, step_s_per_row=0.0, prefill_s_per_token=0.0, max_rows=1)
    assert ends([(0.0, 0, 3), (0.0, 0, 2), (1.0, 0, 1)], narrow)[0] == pytest.approx([3.0, 5.0, 6.0])


def test_reading_a_prompt_holds_everybody_up():
    reading = EngineSpeed(step_s=1.0, step_s_per_row=0.0, prefill_s_per_token=0.1, max_rows=8)
    # 2 s of reading, 5 steps; then 1 s for the second prompt; the first has 5 steps left, the second 2.
    assert ends([(0.0, 20, 10), (7.0, 10, 2)], reading)[0] == pytest.approx([13.0, 10.0])


def test_a_push_of_weights_holds_everybody_up():
    assert ends([(0.0, 0, 10)], stall=(3.0, 4.0))[0] == pytest.approx([19.0])
