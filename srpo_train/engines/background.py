"""A streaming engine made of any engine: a thread samples what is waiting, one batch after another."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from srpo_train.engines.base import Engine, Generation, GenerationRequest, Sampling, StreamingEngine
from srpo_train.throughput.recorder import RECORDER


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A submitted request; an id that is used again after a cancellation gets another number."""

    number: int
    request: GenerationRequest
    sampling: Sampling


class BackgroundEngine:
    """Makes a `StreamingEngine` of an engine that has only `generate`.

    A batch that is being sampled cannot be joined or left: a response comes when its whole batch is done, and what was
    cancelled meanwhile is thrown away. That suits tests, and models so small that batches are short; an engine with
    continuous batching does better.

    Args:
        engine: Its `generate` runs on a thread of this object.
        max_batch_size: Most requests of a batch.
    """

    def __init__(self, engine: Engine, *, max_batch_size: int = 512) -> None:
        self._engine = engine
        self._track = f"engine {engine.policy_id}"
        self._max_batch_size = max_batch_size
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._waiting: list[_Ticket] = []
        self._wanted: dict[str, int] = {}  # request id to ticket number
        self._done: list[Generation] = []
        self._error: BaseException | None = None
        self._is_working = False
        self._is_closed = False
        self._working = threading.Lock()  # held while the engine samples, whoever asked
        self._thread = threading.Thread(target=self._run, name=f"srpo-engine-{engine.policy_id}", daemon=True)
        self._thread.start()

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._engine.policy_id

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order, between two batches of the thread.

        Raises:
            EngineError: the engine failed as a whole.
        """
        with self._working:
            return self._engine.generate(requests, sampling)

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Put requests into the next batch."""
        with self._changed:
            for request in requests:
                ticket = _Ticket(next(self._numbers), request, sampling)
                self._wanted[request.request_id] = ticket.number
                self._waiting.append(ticket)
            self._changed.notify_all()

    def poll(self, timeout_s: float) -> list[Generation]:
        """Return what has been sampled; wait for at most `timeout_s`, or for rest when nothing is wanted any more.

        Raises:
            EngineError: the engine failed as a whole.
        """
        with self._changed:
            if self._wanted:
                self._changed.wait_for(lambda: self._done or self._error, timeout_s)
            else:
                self._changed.wait_for(lambda: not self._is_working)
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            done, self._done = self._done, []
        for generation in done:
            self._wanted.pop(generation.request_id, None)
        return done

    def cancel(self, request_ids: Collection[str]) -> None:
        """Forget requests: those that wait are never sampled, those in the running batch are thrown away."""
        given_up = set(request_ids)
        with self._changed:
            for name in given_up:
                self._wanted.pop(name, None)
            self._waiting = [ticket for ticket in self._waiting if ticket.request.request_id not in given_up]
            self._done = [generation for generation in self._done if generation.request_id not in given_up]

    def close(self) -> None:
        """End the thread after its batch and close the engine; safe to call more than once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._engine.close()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                with self._working, RECORDER.span("generate", "generate", track=self._track, requests=len(batch)):
                    done = self._engine.generate([ticket.request for ticket in batch], batch[0].sampling)
            except BaseException as error:  # the boundary of the thread: `poll` raises it where it is understood
                self._fail(error)
            else:
                self._deliver(batch, done)

    def _next_batch(self) -> list[_Ticket]:
        """Wait for requests and take those that can be sampled together; nothing once the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return []
            sampling = self._waiting[0].sampling
            batch = [ticket for ticket in self._waiting if ticket.sampling == sampling][: self._max_batch_size]
            taken = {ticket.number for ticket in batch}
            self._waiting = [ticket for ticket in self._waiting if ticket.number not in taken]
            self._is_working = True
            return batch

    def _deliver(self, batch: list[_Ticket], done: list[Generation]) -> None:
        with self._changed:
            self._is_working = False
            for ticket, generation in zip(batch, done, strict=True):
                if self._wanted.get(ticket.request.request_id) == ticket.number:
                    self._done.append(generation)
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._is_working = False
            self._waiting.clear()
            self._wanted.clear()
            self._done.clear()
            self._error = error
            self._changed.notify_all()


def as_streaming(engine: Engine) -> StreamingEngine:
    """Return the engine itself if it streams, and otherwise one that does and owns it."""
    return engine if isinstance(engine, StreamingEngine) else BackgroundEngine(engine)
