"""Simulated engines: continuous batching, in which every running response gets one token per decoding step."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from srpo_train.simulation.clock import Clock

_ROUNDING = 1e-6  # decoding steps


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpeed:
    """How fast one copy of the policy samples.

    Example:
        ``EngineSpeed(step_s=0.02, step_s_per_row=1e-4, prefill_s_per_token=2e-5, max_rows=256)``
    """

    step_s: float
    """Seconds of a decoding step whatever its rows: reading the weights."""
    step_s_per_row: float
    """Seconds that every row adds: its cache and its share of the arithmetic."""
    prefill_s_per_token: float
    """Seconds of reading one prompt token, in which nothing is decoded."""
    max_rows: int
    """Responses decoded together; the others wait."""

    def step(self, num_rows: int) -> float:
        """Return the seconds of a decoding step."""
        return self.step_s + self.step_s_per_row * num_rows


class SimulatedReplica:
    """One copy of the policy on its GPUs.

    All rows advance alike, so a row that joins after s steps of the replica's life leaves after s + its length: one
    number for the replica stands for the progress of all of them.

    Args:
        clock: The time.
        speed: How fast it is.
    """

    def __init__(self, clock: Clock, speed: EngineSpeed) -> None:
        self._clock = clock
        self._speed = speed
        self._numbers = itertools.count()
        self._rows: list[tuple[float, int, Callable[[], None]]] = []  # a heap by the step they leave after
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()
        self._steps = 0.0
        self._stall_s = 0.0
        self._at = 0.0
        self._plan_number = 0
        self.busy_s = 0.0
        """Seconds in which it had something to do."""
        self.row_s = 0.0
        """Rows times seconds; over `busy_s` the mean number of rows."""

    @property
    def num_requests(self) -> int:
        """Requests that it decodes or that wait for a seat."""
        return len(self._rows) + len(self._waiting)

    def submit(self, num_prompt_tokens: int, num_tokens: int, done: Callable[[], None]) -> None:
        """Answer a request, and call when that is done."""
        self._advance()
        self._waiting.append((num_prompt_tokens, num_tokens, done))
        self._seat()
        self._plan()

    def stall(self, seconds: float) -> None:
        """Do nothing for some time: new weights are put in."""
        self._advance()
        self._stall_s += seconds
        self._plan()

    def _advance(self) -> None:
        """Bring the rows to the present."""
        passed, self._at = self._clock.now - self._at, self._clock.now
        stalled = min(passed, self._stall_s)
        self._stall_s -= stalled
        if self._rows:
            self.busy_s += passed
            self.row_s += passed * len(self._rows)
            self._steps += (passed - stalled) / self._speed.step(len(self._rows))

    def _seat(self) -> None:
        while self._waiting and len(self._rows) < self._speed.max_rows:
            num_prompt_tokens, num_tokens, done = self._waiting.popleft()
            self._stall_s += num_prompt_tokens * self._speed.prefill_s_per_token
            heapq.heappush(self._rows, (self._steps + num_tokens, next(self._numbers), done))

    def _plan(self) -> None:
        """Come back when the next row leaves; an earlier plan is void."""
        self._plan_number = number = self._plan_number + 1
        if self._rows:
            steps = self._rows[0][0] - self._steps
            delay_s = self._stall_s + steps * self._speed.step(len(self._rows))
            self._clock.after(delay_s, lambda: self._leave(number))

    def _leave(self, number: int) -> None:
        if number != self._plan_number:
            return
        self._advance()
        finished = []
        while self._rows and self._rows[0][0] <= self._steps + _ROUNDING:
            finished.append(heapq.heappop(self._rows)[2])
        self._seat()
        self._plan()
        for done in finished:
            done()
