"""Simulated time: a heap of what happens when.

A general library for this (simpy) was weighed. What is simulated here is mostly engines whose speed changes whenever a
request joins or leaves; as generators they would be interrupted at each of these moments, where a heap takes one entry.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Calls functions at their times, in order; equal times in the order they were set.

    Example:
        >>> clock = Clock()
        >>> clock.after(2.0, lambda: print(clock.now))
        >>> clock.run(lambda: False)
        2.0
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the beginning."""
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have something happen in so many seconds."""
        heapq.heappush(self._heap, (self.now + max(delay_s, 0.0), next(self._numbers), call))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass until a condition holds or nothing more happens."""
        while self._heap and not is_over():
            self.now, _, call = heapq.heappop(self._heap)
            call()
