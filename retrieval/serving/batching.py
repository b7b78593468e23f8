"""One queue in front of a search engine: what many clients ask at once is searched together.

A request waits until a worker is free; then the worker takes along everything that waits for the same number of
passages, up to a most. So batches are as large as the load and an idle server answers a lone request almost at once.
Workers are daemon threads: an engine that hangs costs the requests that wait for it, and never the end of the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from srpo_envs.search import Passage

logger = logging.getLogger(__name__)

Found = list[list[Passage]]
Search = Callable[[Sequence[str], int], Found]


class QueueFullError(Exception):
    """As many queries wait as may wait."""


@dataclass(kw_only=True, slots=True)
class _Job:
    """A part of a request, searched in one piece."""

    queries: Sequence[str]
    top_k: int
    future: Future[Found] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Searches for many callers with few calls of the engine.

    Queries are only put together with others of the same `top_k`, so that an answer never depends on what else was
    asked at the time. A call that fails is repeated for each of its requests alone: a query that breaks the engine
    fails by itself.

    Args:
        search: The engine.
        max_batch: Most queries of one call; a longer request is cut into several.
        max_wait_s: How long a request may wait for others while a worker is free.
        max_waiting: Most queries that may wait.
        num_workers: Threads that call the engine.
        on_batch: Told the size and the seconds of every call that succeeded.
    """

    def __init__(
        self,
        search: Search,
        *,
        max_batch: int,
        max_wait_s: float,
        max_waiting: int,
        num_workers: int = 1,
        on_batch: Callable[[int, float], None] = lambda num_queries, seconds: None,
    ) -> None:
        self._search = search
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s
        self._max_waiting = max_waiting
        self._on_batch = on_batch
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._num_waiting = 0
        self._is_closed = False
        self._busy_since: dict[int, float] = {}
        self._workers = [
            threading.Thread(target=self._work, args=(number,), name=f"search-{number}", daemon=True)
            for number in range(num_workers)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def num_waiting(self) -> int:
        """Queries that no worker has taken yet."""
        return self._num_waiting

    def busy_s(self) -> float:
        """How long the oldest call of the engine has been running, 0 when none is."""
        since = list(self._busy_since.values())
        return time.monotonic() - min(since) if since else 0.0

    def submit(self, queries: Sequence[str], top_k: int) -> list[Future[Found]]:
        """Queue a request; a future that is cancelled before its turn is not searched.

        Returns:
            Futures of consecutive parts of the answer.

        Raises:
            QueueFullError: `max_waiting` would be passed, or the batcher is closed; nothing was queued.
        """
        parts = [queries[start : start + self._max_batch] for start in range(0, len(queries), self._max_batch)]
        jobs = [_Job(queries=part, top_k=top_k) for part in parts]
        with self._changed:
            if self._is_closed or self._num_waiting + len(queries) > self._max_waiting:
                raise QueueFullError(f"{self._num_waiting} queries wait already, at most {self._max_waiting} may")
            is_first = not self._waiting
            self._waiting.extend(jobs)
            self._num_waiting += len(queries)
            # Otherwise a worker watches the queue already, or all are busy.
            if is_first or self._num_waiting >= self._max_batch:
                self._changed.notify()
        return [job.future for job in jobs]

    def close(self, timeout_s: float) -> bool:
        """Answer what waits, then end the workers; what still waits after `timeout_s` is cancelled.

        Returns:
            Whether the workers have ended; one whose engine hangs has not.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.join(max(deadline - time.monotonic(), 0.0))
        with self._changed:
            left, self._waiting, self._num_waiting = self._waiting, deque(), 0
        for job in left:
            job.future.cancel()
        return not any(worker.is_alive() for worker in self._workers)

    def _work(self, number: int) -> None:
        while jobs := self._next_batch():
            self._busy_since[number] = time.monotonic()
            try:
                self._answer(jobs)
            finally:
                del self._busy_since[number]

    def _next_batch(self) -> list[_Job]:
        """Wait for jobs and take those that are searched together; none means the end."""
        with self._changed:
            while True:
                if self._waiting:
                    wait_s = self._waiting[0].arrived + self._max_wait_s - time.monotonic()
                    if wait_s <= 0 or self._num_waiting >= self._max_batch or self._is_closed:
                        return self._take()
                    self._changed.wait(wait_s)
                elif self._is_closed:
                    return []
                else:
                    self._changed.wait()

    def _take(self) -> list[_Job]:
        """Take the oldest job and those of the same `top_k` that fit beside it."""
        taken: list[_Job] = []
        passed_by: deque[_Job] = deque()
        room = self._max_batch
        for job in self._waiting:
            if job.top_k == self._waiting[0].top_k and len(job.queries) <= room:
                taken.append(job)
                room -= len(job.queries)
            else:
                passed_by.append(job)
        self._waiting = passed_by
        self._num_waiting -= self._max_batch - room
        if passed_by:
            self._changed.notify()
        return taken

    def _answer(self, jobs: Sequence[_Job]) -> None:
        wanted = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            self._call(wanted)
        except Exception as error:  # whatever an engine raises belongs to the request that caused it
            if len(wanted) == 1:
                wanted[0].future.set_exception(error)
                return
            logger.warning("a search for %d requests failed, searching for each alone: %s", len(wanted), error)
            for job in wanted:
                self._answer_alone(job)

    def _answer_alone(self, job: _Job) -> None:
        try:
            self._call([job])
        except Exception as error:  # see _answer
            job.future.set_exception(error)

    def _call(self, jobs: Sequence[_Job]) -> None:
        queries = [query for job in jobs for query in job.queries]
        start = time.monotonic()
        found = iter(self._search(queries, jobs[0].top_k))
        self._on_batch(len(queries), time.monotonic() - start)
        for job in jobs:
            job.future.set_result([next(found) for _ in job.queries])
