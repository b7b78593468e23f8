"""A thread beside the trainer, and what the two tell each other."""

from __future__ import annotations

import threading
from collections.abc import Callable


class StoppedError(Exception):
    """The trainer wants the thread to end; it never leaves the thread."""


class Worker:
    """Runs a function on a thread of its own and lets its error be raised where its results are waited for.

    Everything that both sides read is changed while `changed` is held.

    Args:
        work: Runs until it raises `StoppedError` or has nothing more to do.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_stopping = False
        self.changed = threading.Condition()
        """Held for every change, and notified after it."""

    @property
    def is_started(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def start(self) -> None:
        """Begin, unless that has happened."""
        if self._thread is None:
            self._is_stopping = False
            self._thread = threading.Thread(target=self._run, name="srpo-ahead", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for that; it may be started again."""
        with self.changed:
            self._is_stopping = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def await_here(self, is_so: Callable[[], object]) -> None:
        """Wait, in the thread, until something is so.

        Raises:
            StoppedError: the thread is to end.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._is_stopping or is_so())
        self.check()

    def check(self) -> None:
        """Return if the thread may go on.

        Raises:
            StoppedError: it may not.
        """
        if self._is_stopping:
            raise StoppedError

    def pause(self, seconds: float) -> None:
        """Do nothing, in the thread, for some time.

        Raises:
            StoppedError: the thread is to end.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._is_stopping, seconds)
        self.check()

    def await_there(self, is_so: Callable[[], object]) -> None:
        """Wait, in the trainer, until something is so, which may act on being so: it is asked no more afterwards.

        Raises:
            SrpoError: the thread has failed; whatever it failed with.
        """
        is_there = False

        def look() -> bool:
            nonlocal is_there
            is_there = bool(is_so())
            return is_there or self._error is not None

        with self.changed:
            self.changed.wait_for(look)
        if not is_there and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except StoppedError:
            pass
        except BaseException as error:  # the boundary of the thread: raised again where it is waited for
            with self.changed:
                self._error = error
                self.changed.notify_all()
