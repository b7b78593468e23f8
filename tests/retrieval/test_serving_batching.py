"""The queue in front of the engine: what is searched together, who gets which answer, and what a failure costs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_servers import KnownEngine, expected

from retrieval.serving.batching import Batcher, QueueFullError


def batcher_of(engine, **options):
    defaults = {"max_batch": 8, "max_wait_s": 0.0, "max_waiting": 1000}
    return Batcher(engine.search, **(defaults | options))


def answer(parts, timeout_s=60.0):
    return [passages for part in parts for passages in part.result(timeout_s)]


class HeldEngine(KnownEngine):
    """Waits in its first call, so that everything else queues behind it."""

    def __init__(self):
        super().__init__()
        self.is_held = threading.Event()

    def search(self, queries, top_k):
        if not self.calls:
            self.calls.append((list(queries), top_k))
            self.is_held.set()
            assert self.released.wait(60)
            return [expected(query, top_k) for query in queries]
        return super().search(queries, top_k)


@pytest.fixture
def held():
    engine = HeldEngine()
    yield engine
    engine.released.set()


def hold(engine, batcher):
    """Keep the worker busy; what is submitted next waits."""
    parts = batcher.submit(["first"], 1)
    assert engine.is_held.wait(60)
    return parts


def test_what_waits_is_searched_in_one_call(held):
    batcher = batcher_of(held)
    hold(held, batcher)
    requests = [batcher.submit([f"q{number}"], 3) for number in range(5)]
    assert batcher.num_waiting == 5
    held.released.set()
    assert [answer(request) for request in requests] == [[expected(f"q{number}", 3)] for number in range(5)]
    assert held.calls[1:] == [([f"q{number}" for number in range(5)], 3)]
    assert batcher.num_waiting == 0
    assert batcher.close(60)


def test_a_batch_holds_one_top_k_and_at_most_so_many_queries(held):
    batcher = batcher_of(held, max_batch=4)
    hold(held, batcher)
    batcher.submit(["a", "b"], 3)
    batcher.submit(["c"], 5)
    batcher.submit(["d", "e", "f"], 3)  # does not fit beside a and b
    batcher.submit(["g", "h"], 3)  # does
    held.released.set()
    assert batcher.close(60)
    assert held.calls[1:] == [(["a", "b", "g", "h"], 3), (["c"], 5), (["d", "e", "f"], 3)]


def test_a_long_request_is_cut_and_put_together_again():
    engine = KnownEngine()
    batcher = batcher_of(engine, max_batch=4)
    queries = [f"q{number}" for number in range(10)]
    assert answer(batcher.submit(queries, 2)) == [expected(query, 2) for query in queries]
    assert [len(asked) for asked, _ in engine.calls] == [4, 4, 2]
    assert batcher.close(60)


def test_a_lone_request_waits_for_company_but_not_for_long():
    engine = KnownEngine()
    batcher = batcher_of(engine, max_wait_s=1.0)
    start = time.monotonic()
    first = batcher.submit(["a"], 1)
    second = batcher.submit(["b"], 1)
    assert answer(first) == [expected("a", 1)]
    assert time.monotonic() - start > 0.95
    assert answer(second) == [expected("b", 1)]
    assert engine.calls == [(["a", "b"], 1)]
    assert batcher.close(60)


def test_a_full_batch_does_not_wait():
    batcher = batcher_of(KnownEngine(), max_wait_s=300.0, max_batch=2)
    assert answer(batcher.submit(["a", "b"], 1)) == [expected("a", 1), expected("b", 1)]
    assert batcher.close(60)


def test_only_so_many_queries_may_wait(held):
    batcher = batcher_of(held, max_waiting=3)
    hold(held, batcher)
    parts = batcher.submit(["a", "b"], 1)
    with pytest.raises(QueueFullError, match="2 queries wait already, at most 3 may"):
        batcher.submit(["c", "d"], 1)
    assert batcher.num_waiting == 2
    held.released.set()
    assert answer(parts) == [expected("a", 1), expected("b", 1)]
    assert batcher.close(60)


def test_a_query_that_breaks_the_engine_fails_alone(held):
    batcher = batcher_of(held)
    hold(held, batcher)
    good, bad, other = batcher.submit(["a"], 1), batcher.submit(["break"], 1), batcher.submit(["b"], 1)
    held.released.set()
    assert (answer(good), answer(other)) == ([expected("a", 1)], [expected("b", 1)])
    with pytest.raises(OSError, match="the disk is gone"):
        answer(bad)
    assert answer(batcher.submit(["later"], 1)) == [expected("later", 1)]
    assert batcher.close(60)


def test_a_cancelled_request_is_not_searched(held):
    batcher = batcher_of(held)
    hold(held, batcher)
    (unwanted,), wanted = batcher.submit(["a"], 1), batcher.submit(["b"], 1)
    assert unwanted.cancel()
    held.released.set()
    assert answer(wanted) == [expected("b", 1)]
    assert batcher.close(60)
    assert held.calls[1:] == [(["b"], 1)]


def test_closing_answers_what_waits_and_takes_nothing_more(held):
    batcher = batcher_of(held)
    hold(held, batcher)
    parts = batcher.submit(["a"], 1)
    threading.Timer(0.05, held.released.set).start()
    assert batcher.close(60)
    assert answer(parts) == [expected("a", 1)]
    with pytest.raises(QueueFullError):
        batcher.submit(["b"], 1)


def test_closing_does_not_wait_for_an_engine_that_hangs(held):
    batcher = batcher_of(held)
    hold(held, batcher)
    (waiting,) = batcher.submit(["a"], 1)
    assert not batcher.close(0.05)
    assert waiting.cancelled()


def test_it_tells_how_long_the_engine_has_been_searching(held):
    batcher = batcher_of(held)
    assert batcher.busy_s() == 0.0
    first = hold(held, batcher)
    time.sleep(0.05)
    assert 0.05 <= batcher.busy_s() < 60
    held.released.set()
    answer(first)
    assert batcher.close(60)
    assert batcher.busy_s() == 0.0


def test_sizes_and_times_of_calls_are_told():
    told = []
    batcher = batcher_of(KnownEngine(delay_s=0.02), on_batch=lambda size, seconds: told.append((size, seconds)))
    answer(batcher.submit(["a", "b", "c"], 1))
    assert batcher.close(60)
    ((size, seconds),) = told
    assert size == 3
    assert seconds >= 0.02


def test_several_workers_call_the_engine_at_once():
    both = threading.Barrier(2)

    def search(queries, top_k):
        both.wait(60)  # fails unless two calls are inside
        return [expected(query, top_k) for query in queries]

    batcher = Batcher(search, max_batch=1, max_wait_s=0.0, max_waiting=10, num_workers=2)
    parts = [batcher.submit([name], 1) for name in "ab"]
    assert [answer(part) for part in parts] == [[expected("a", 1)], [expected("b", 1)]]
    assert batcher.close(60)


REQUESTS = st.lists(
    st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=7), st.integers(1, 3)), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS, max_batch=st.integers(1, 5), num_workers=st.integers(1, 3))
def test_every_request_gets_its_own_answer_however_they_are_batched(requests, max_batch, num_workers):
    engine = KnownEngine()
    batcher = batcher_of(engine, max_batch=max_batch, num_workers=num_workers, max_wait_s=0.001)
    submitted = [batcher.submit(queries, top_k) for queries, top_k in requests]
    wait([part for parts in submitted for part in parts], 5)
    assert [answer(parts) for parts in submitted] == [
        [expected(query, top_k) for query in queries] for queries, top_k in requests
    ]
    assert all(1 <= len(queries) <= max_batch for queries, _ in engine.calls)
    assert sum(len(queries) for queries, _ in engine.calls) == sum(len(queries) for queries, _ in requests)
    assert batcher.num_waiting == 0
    assert batcher.close(60)
