"""How long something has been under way, told while it still is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self


class Stopwatch:
    """Adds up the seconds spent in its ``with`` blocks; another thread may read it at any time, also within one.

    Whoever takes the difference of two readings gets the seconds between them in which a block was entered: a block
    that began before the first or ends after the second counts with the part between.

    Args:
        now: The time in seconds.

    Example:
        >>> watch = Stopwatch()
        >>> with watch:
        ...     pass
        >>> watch.seconds > 0
        True
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()  # a block must not end between the two numbers of a reading
        self._ended_s = 0.0
        self._begun: float | None = None

    def __enter__(self) -> Self:
        """Begin to count."""
        with self._lock:
            self._begun = self._now()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop counting."""
        with self._lock:
            assert self._begun is not None
            self._ended_s += self._now() - self._begun
            self._begun = None

    @property
    def seconds(self) -> float:
        """Seconds so far; never less than at an earlier reading."""
        with self._lock:
            return self._ended_s + (self._now() - self._begun if self._begun is not None else 0.0)
