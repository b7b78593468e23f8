"""Requests under way on an event loop: what engines that ask servers share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from srpo_envs.errors import EngineError
from srpo_train.engines.base import Generation, GenerationRequest, Sampling

_T = TypeVar("_T")


class _Wanted(NamedTuple):
    """A submitted request whose answer has not come."""

    request: GenerationRequest
    future: concurrent.futures.Future[Generation]


class InFlight:
    """Answers requests one by one on an event loop with a thread of its own; the work of a `StreamingEngine`.

    A request that is cancelled is cut off where it waits, so that its connection closes and the server stops working
    on it.

    Args:
        name: Of the thread.
        answer: Answers one request. What it raises is a failure of the whole engine.
    """

    def __init__(self, name: str, answer: Callable[[GenerationRequest, Sampling], Awaitable[Generation]]) -> None:
        self._answer = answer
        self._changed = threading.Condition()
        self._wanted: dict[str, _Wanted] = {}
        self._done: list[Generation] = []
        self._error: BaseException | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order, beside whatever else is under way.

        Raises:
            EngineError: the engine failed as a whole.
        """
        futures = [self._start(request, sampling) for request in requests]
        try:
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            failed = next((f for f in futures if f.done() and not f.cancelled() and f.exception()), None)
            return [future.result() for future in ([failed] if failed else futures)]
        finally:
            for future in futures:
                future.cancel()

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Begin to answer requests; return at once."""
        for request in requests:
            future = self._start(request, sampling)
            with self._changed:
                self._wanted[request.request_id] = _Wanted(request, future)
            future.add_done_callback(functools.partial(self._finish, request.request_id))

    def poll(self, timeout_s: float) -> list[Generation]:
        """Return what has been answered; wait for at most `timeout_s`, or for rest when nothing is wanted any more.

        Raises:
            EngineError: the engine failed as a whole; all requests are forgotten.
        """
        if not self._wanted:
            self.call(self._rest())
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._error or not self._wanted, timeout_s)
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            done, self._done = self._done, []
        return done

    def cancel(self, request_ids: Collection[str]) -> None:
        """Give requests up; they never come back."""
        with self._changed:
            given_up = [self._wanted.pop(name).future for name in request_ids if name in self._wanted]
            self._done = [generation for generation in self._done if generation.request_id not in set(request_ids)]
        for future in given_up:
            future.cancel()

    def interrupt(
        self, give_up: Callable[[GenerationRequest], Generation], refuse: Callable[[Generation], Generation]
    ) -> None:
        """Cut off what was submitted; `poll` then returns what is made of it.

        Args:
            give_up: Answers in place of one that is under way.
            refuse: Takes an answer that has come and was not polled.
        """
        with self._changed:
            cut_off, self._wanted = list(self._wanted.values()), {}
            self._done = [refuse(generation) for generation in self._done]
            self._done += [give_up(wanted.request) for wanted in cut_off]
        for wanted in cut_off:
            wanted.future.cancel()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something else on the loop and return its result."""
        with self.started(work) as future:
            return future.result()

    @contextlib.contextmanager
    def started(self, work: Coroutine[Any, Any, _T]) -> Iterator[concurrent.futures.Future[_T]]:
        """Run something else on the loop while the body runs, and no longer."""
        self._check_open(work)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            yield future
        finally:
            future.cancel()

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work on the loop that goes on beside requests, called from the loop; `poll` does not wait for it."""
        task = self._loop.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Give everything up, run one last thing, and end the thread; safe to call more than once."""
        if self._is_closed:
            if last is not None:
                last.close()
            return
        self._is_closed = True
        with contextlib.suppress(concurrent.futures.CancelledError):
            asyncio.run_coroutine_threadsafe(_wind_up(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self, request: GenerationRequest, sampling: Sampling) -> concurrent.futures.Future[Generation]:
        work = self._run(request, sampling)
        self._check_open(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _run(self, request: GenerationRequest, sampling: Sampling) -> Generation:
        return await self._answer(request, sampling)

    async def _rest(self) -> None:
        """Wait for the ends of requests that were given up."""
        requests = asyncio.all_tasks() - self._beside - {asyncio.current_task()}
        await asyncio.gather(*requests, return_exceptions=True)

    def _finish(self, name: str, future: concurrent.futures.Future[Generation]) -> None:
        """Take the end of a submitted request; one whose name has been given up, or given again, is not wanted."""
        forgotten: list[concurrent.futures.Future[Generation]] = []
        with self._changed:
            wanted = self._wanted.get(name)
            if wanted is None or wanted.future is not future:
                return
            del self._wanted[name]
            if future.cancelled():  # the engine is being closed
                return
            error = future.exception()
            if error is None:
                self._done.append(future.result())
            else:
                self._error = error
                forgotten, self._done = [wanted.future for wanted in self._wanted.values()], []
                self._wanted.clear()
            self._changed.notify_all()
        for other in forgotten:
            other.cancel()

    def _check_open(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._is_closed:
            work.close()
            raise EngineError(f"{self._thread.name}: the engine is closed")


async def _wind_up(last: Coroutine[Any, Any, None] | None) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if last is not None:
        await last
