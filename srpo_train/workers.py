"""Daemon threads for environment work, so that a hanging grader or tool can be left behind.

`concurrent.futures` joins its threads when the interpreter exits and cannot replace one that hangs; a training run must
be able to give up on one environment step and still end.
"""

from __future__ import annotations

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
        self._next_key = 0
        self._num_threads = 0
        for _ in range(num_workers):
            self._add_thread()

    def submit(self, call: Callable[[], Any]) -> int:
        """Queue a call and return its key."""
        key = self._next_key
        self._next_key += 1
        self._tasks.put((key, call))
        return key

    def wait(self, timeout_s: float) -> Finished | None:
        """Return the next finished call, or None when none finishes in time."""
        try:
            return self._finished.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def replace_one(self) -> None:
        """Add a thread in place of one that hangs; the hung one ends with its call, or with the process."""
        self._add_thread()

    def close(self) -> None:
        """Let every idle thread end; safe to call more than once."""
        for _ in range(self._num_threads):
            self._tasks.put(None)
        self._num_threads = 0

    def _add_thread(self) -> None:
        self._num_threads += 1
        threading.Thread(target=self._run, name=f"srpo-env-{self._num_threads}", daemon=True).start()

    def _run(self) -> None:
        while (item := self._tasks.get()) is not None:
            key, call = item
            try:
                self._finished.put(Finished(key, call(), None))
            except BaseException as error:  # the boundary that records: the collector decides what an error means
                self._finished.put(Finished(key, None, error))
