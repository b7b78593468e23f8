"""Daemon threads for environment work, so that a hanging grader or tool can be left behind.

`concurrent.futures` joins its threads when the interpreter exits and cannot replace one that hangs; a training run must
be able to give up on one environment step and still end.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one submitted call."""

    key: int
    """What `submit` returned."""
    value: Any
    """The call's result; None when it raised."""
    error: BaseException | None
    """What the call raised."""


class StepWorkers:
    """A fixed number of daemon threads with one queue in and one queue out.

    Args:
        num_workers: Calls that may run at once.
    """

    def __init__(self, num_workers: int) -> None:
        self._tasks: queue.SimpleQueue[tuple[int, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._queued: set[int] = set()
        self._running: set[int] = set()
        self._num_open = num_workers
        self._numbers = itertools.count()
        for _ in range(num_workers):
            self._add_thread()

    def submit(self, call: Callable[[], Any]) -> int:
        """Queue a call and return its key."""
        key = next(self._keys)
        with self._lock:
            self._queued.add(key)
        self._tasks.put((key, call))
        return key

    def wait(self, timeout_s: float) -> Finished | None:
        """Return the next finished call, or None when none finishes in time."""
        try:
            return self._finished.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def abandon(self, key: int) -> None:
        """Give a call up: one that waits never runs; one that runs ends with its thread, which is replaced at once.

        A call that has just finished may still come out of `wait`.
        """
        with self._lock:
            self._queued.discard(key)
            if key not in self._running:
                return
            self._running.discard(key)
        self._add_thread()

    def close(self) -> None:
        """Let every idle thread end; safe to call more than once."""
        for _ in range(self._num_open):
            self._tasks.put(None)
        self._num_open = 0

    def _add_thread(self) -> None:
        threading.Thread(target=self._run, name=f"environment {next(self._numbers)}", daemon=True).start()

    def _run(self) -> None:
        while (item := self._tasks.get()) is not None:
            key, call = item
            with self._lock:
                if key not in self._queued:
                    continue
                self._queued.discard(key)
                self._running.add(key)
            finished = _outcome(key, call)
            with self._lock:
                if key not in self._running:
                    return  # abandoned: another thread has this one's place
                self._running.discard(key)
            self._finished.put(finished)


def _outcome(key: int, call: Callable[[], Any]) -> Finished:
    try:
        return Finished(key, call(), None)
    except BaseException as error:  # the boundary that records: the collector decides what an error means
        return Finished(key, None, error)
