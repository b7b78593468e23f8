"""A cache in front of a retriever: what was found lately is not searched again, what is being searched not twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from retrieval.engine import fingerprint_of, num_passages_of
from srpo_envs.errors import RetrieverError
from srpo_envs.search import Passage, Retriever, close_retriever, search_all

_Key = tuple[str, int]
"""A query, and how many passages were asked for."""
_Answer = tuple[Passage, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheStats:
    """What a cache has done since it was made."""

    num_hits: int
    """Queries answered without asking the retriever for them: from the cache, or with another thread's answer."""
    num_misses: int
    """Queries the retriever was asked."""
    num_cached: int
    """Answers held now."""


class CachedRetriever:
    """Keeps the latest answers of a retriever. Safe for threads, which wait for each other's searches of one query.

    The queries of a search that are not in the cache go to the retriever in one batch. When that fails, every thread
    that waits for one of them fails alike, and nothing is kept.

    Args:
        inner: Who answers.
        max_queries: Answers kept; the one that was not used for the longest time is dropped first.

    Raises:
        ValueError: `max_queries` below 1.
    """

    def __init__(self, inner: Retriever, max_queries: int = 10_000) -> None:
        if max_queries < 1:
            raise ValueError(f"max_queries: expected at least 1, got {max_queries}")
        self._inner = inner
        self._max_queries = max_queries
        self._lock = threading.Lock()
        self._answers: OrderedDict[_Key, _Answer] = OrderedDict()
        self._under_way: dict[_Key, Future[_Answer]] = {}
        self._num_hits = 0
        self._num_misses = 0

    @property
    def fingerprint(self) -> str:
        """That of the retriever that answers."""
        return fingerprint_of(self._inner)

    @property
    def num_passages(self) -> int:
        """How many passages the retriever that answers holds; 0 where it does not say."""
        return num_passages_of(self._inner)

    @property
    def stats(self) -> CacheStats:
        """Hits and misses so far."""
        with self._lock:
            return CacheStats(num_hits=self._num_hits, num_misses=self._num_misses, num_cached=len(self._answers))

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return what the retriever finds, or found.

        Raises:
            ValueError: `top_k` below 1.
            RetrieverError: the retriever fails.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        keys = [(query, top_k) for query in queries]
        pending, own = self._look_up(keys)
        if own:  # first, for other threads wait for them; nobody waits in a circle, as looking up is one step
            self._ask(own, top_k)
        answers = {key: future.result() for key, future in pending.items()}
        return [list(answers[key]) for key in keys]

    def close(self) -> None:
        """Drop all answers, and close the retriever, where it can be closed."""
        with self._lock:
            self._answers.clear()
        close_retriever(self._inner)

    def _look_up(self, keys: Sequence[_Key]) -> tuple[dict[_Key, Future[_Answer]], dict[_Key, Future[_Answer]]]:
        """Return the answers of all keys, given or to come, and those among them that are this thread's to ask for."""
        pending: dict[_Key, Future[_Answer]] = {}
        own: dict[_Key, Future[_Answer]] = {}
        with self._lock:
            for key in keys:
                if key in self._answers:
                    self._answers.move_to_end(key)
                    pending[key] = Future()
                    pending[key].set_result(self._answers[key])
                elif key in self._under_way:
                    pending[key] = self._under_way[key]
                else:
                    pending[key] = own[key] = self._under_way[key] = Future()
            self._num_misses += len(own)
            self._num_hits += len(keys) - len(own)
        return pending, own

    def _ask(self, own: dict[_Key, Future[_Answer]], top_k: int) -> None:
        """Search for what is not known, keep it and hand it to all who wait."""
        try:
            found = search_all(self._inner, [query for query, _ in own], top_k)
        except BaseException as error:
            with self._lock:
                for key in own:
                    del self._under_way[key]
            interrupted = RetrieverError("the thread that searched for the same query was interrupted")
            for future in own.values():
                future.set_exception(error if isinstance(error, Exception) else interrupted)
            raise
        with self._lock:
            for key, passages in zip(own, found, strict=True):
                del self._under_way[key]
                self._answers[key] = tuple(passages)
                if len(self._answers) > self._max_queries:
                    self._answers.popitem(last=False)
        for future, passages in zip(own.values(), found, strict=True):
            future.set_result(tuple(passages))
