from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.cache import CachedRetriever
from srpo_envs.errors import RetrieverError
from srpo_envs.search import Passage, search_all


class EchoEngine:
    """Finds `top_k` passages named after the query, and notes what it was asked; `hook` runs before it answers."""

    fingerprint = "echo"
    num_passages = 7

    def __init__(self, hook: Callable[[], None] = lambda: None) -> None:
        self.asked: list[tuple[list[str], int]] = []
        self.is_closed = False
        self.hook = hook

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        self.asked.append((list(queries), top_k))
        self.hook()
        return answers(queries, top_k)

    def close(self) -> None:
        self.is_closed = True


def answers(queries: Sequence[str], top_k: int) -> list[list[Passage]]:
    return [[Passage(id=f"{query}{rank}", title="", text=query) for rank in range(top_k)] for query in queries]


def counts(cached: CachedRetriever) -> tuple[int, int, int]:
    return cached.stats.num_hits, cached.stats.num_misses, cached.stats.num_cached


def test_only_what_is_not_known_is_asked_in_one_batch() -> None:
    engine = EchoEngine()
    cached = CachedRetriever(engine)
    assert search_all(cached, ["a", "b"], 2) == answers(["a", "b"], 2)
    assert search_all(cached, ["c", "a", "d", "c"], 2) == answers(["c", "a", "d", "c"], 2)
    assert engine.asked == [(["a", "b"], 2), (["c", "d"], 2)]
    assert counts(cached) == (2, 4, 4)
    assert cached.search(["a"], 2) == answers(["a"], 2) and cached.search([], 2) == []
    assert len(engine.asked) == 2


def test_another_number_of_passages_is_another_question() -> None:
    engine = EchoEngine()
    cached = CachedRetriever(engine)
    assert [cached.search(["a"], top_k) for top_k in (2, 3, 2)] == [answers(["a"], top_k) for top_k in (2, 3, 2)]
    assert engine.asked == [(["a"], 2), (["a"], 3)]


def test_the_least_recently_used_answer_is_dropped() -> None:
    engine = EchoEngine()
    cached = CachedRetriever(engine, max_queries=2)
    for query in ("a", "b", "a", "c", "a", "b"):  # c drops b, not a
        cached.search([query], 1)
    assert [queries for queries, _ in engine.asked] == [["a"], ["b"], ["c"], ["b"]]
    assert counts(cached) == (2, 4, 2)


def test_a_batch_may_be_larger_than_the_cache() -> None:
    cached = CachedRetriever(EchoEngine(), max_queries=2)
    assert cached.search(list("abcde"), 1) == answers(list("abcde"), 1)
    assert cached.stats.num_cached == 2


def test_a_caller_may_change_what_it_was_given() -> None:
    cached = CachedRetriever(EchoEngine())
    cached.search(["a"], 2)[0].clear()
    cached.search(["a"], 2)[0].clear()
    assert cached.search(["a", "a"], 2) == answers(["a", "a"], 2)


def test_failures_are_not_kept() -> None:
    def fail() -> None:
        raise RetrieverError("the server is away")

    engine = EchoEngine(fail)
    cached = CachedRetriever(engine)
    for _ in range(2):
        with pytest.raises(RetrieverError, match="away"):
            cached.search(["a"], 1)
    engine.hook = lambda: None
    assert cached.search(["a"], 1) == answers(["a"], 1)
    assert engine.asked == [(["a"], 1)] * 3
    assert counts(cached) == (0, 3, 1)


def test_an_answer_that_breaks_the_protocol_is_not_kept() -> None:
    engine = EchoEngine()
    engine.search = lambda queries, top_k: []  # type: ignore[method-assign]
    cached = CachedRetriever(engine)
    with pytest.raises(RetrieverError, match="expected as many lists"):
        cached.search(["a"], 1)
    assert counts(cached) == (0, 1, 0)


@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_one_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="max_queries"):
        CachedRetriever(EchoEngine(), max_queries=value)
    with pytest.raises(ValueError, match="top_k"):
        CachedRetriever(EchoEngine()).search(["a"], value)


def test_it_says_of_itself_what_the_engine_says() -> None:
    engine = EchoEngine()
    cached = CachedRetriever(engine)
    assert (cached.fingerprint, cached.num_passages) == ("echo", 7)
    cached.search(["a"], 1)
    cached.close()
    assert engine.is_closed and cached.stats.num_cached == 0


# --- threads ------------------------------------------------------------------------------------------------------


class Gate:
    """Holds whoever passes until it is opened, and says when somebody is there."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self._error = error

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(30)
        if self._error is not None:
            raise self._error


def wait_for_hits(cached: CachedRetriever, num_hits: int) -> None:
    """Wait until that many queries are waiting for another thread's answer."""
    for _ in range(3000):
        if cached.stats.num_hits == num_hits:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the threads never came to wait")


def test_threads_share_one_search_of_a_query() -> None:
    gate = Gate()
    engine = EchoEngine(gate)
    cached = CachedRetriever(engine)
    with ThreadPoolExecutor(8) as pool:
        searches = [pool.submit(cached.search, ["a"], 1) for _ in range(8)]
        assert gate.entered.wait(30)
        wait_for_hits(cached, 7)
        gate.opened.set()
        assert [search.result(30) for search in searches] == [answers(["a"], 1)] * 8
    assert engine.asked == [(["a"], 1)]
    assert counts(cached) == (7, 1, 1)


def test_waiting_for_one_query_does_not_hold_up_the_others() -> None:
    gate = Gate()
    engine = EchoEngine(gate)
    cached = CachedRetriever(engine)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached.search, ["a"], 1)
        assert gate.entered.wait(30)
        engine.hook = lambda: None
        second = pool.submit(cached.search, ["b", "a"], 1)  # asks b at once and waits for a
        wait_for_hits(cached, 1)
        assert cached.search(["b"], 1) == answers(["b"], 1)
        assert not second.done()
        gate.opened.set()
        assert (first.result(30), second.result(30)) == (answers(["a"], 1), answers(["b", "a"], 1))
    assert engine.asked == [(["a"], 1), (["b"], 1)]


@pytest.mark.parametrize(
    ("error", "seen"),
    [(RetrieverError("the server is away"), "the server is away"), (KeyboardInterrupt(), "was interrupted")],
)
def test_threads_that_wait_share_a_failure(error: BaseException, seen: str) -> None:
    gate = Gate(error)
    engine = EchoEngine(gate)
    cached = CachedRetriever(engine)
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(cached.search, ["a", "b"], 1)
        assert gate.entered.wait(30)
        waiting = pool.submit(cached.search, ["b"], 1)
        wait_for_hits(cached, 1)
        gate.opened.set()
        with pytest.raises(type(error)):
            asking.result(30)
        with pytest.raises(RetrieverError, match=seen):
            waiting.result(30)
    engine.hook = lambda: None
    assert cached.search(["b"], 1) == answers(["b"], 1)


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=4), max_size=12), st.integers(1, 4))
def test_many_threads_are_answered_as_without_a_cache(batches: list[list[str]], max_queries: int) -> None:
    engine = EchoEngine()
    cached = CachedRetriever(engine, max_queries=max_queries)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: cached.search(batch, 2), batches))
    assert found == [answers(batch, 2) for batch in batches]
    assert cached.stats.num_hits + cached.stats.num_misses == sum(len(batch) for batch in batches)
    assert cached.stats.num_misses == sum(len(queries) for queries, _ in engine.asked)
    assert cached.stats.num_cached <= max_queries
