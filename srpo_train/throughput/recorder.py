"""What this process does with its time: seconds and work by phase, always; single spans, in steps that are traced.

There is one recorder a process, as with `logging`, so that a worker thread far from the loop can tell what it does
without being handed anything. Phases are a few for each optimiser step. Spans may be many; where nothing is traced, one
costs the look at a flag.

A GPU works on after the call that gave it work has returned. A phase therefore ends by waiting for it, which costs next
to nothing: scores, norms and weights are read right afterwards anyway. Finer spans wait only while they are recorded.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

Phase = Literal[
    "generate", "environment", "score", "backward", "optimizer", "publish", "evaluate", "checkpoint", "other"
]
"""What a run can be doing. The update is ``score``, ``backward`` and ``optimizer``."""

PHASES: tuple[Phase, ...] = get_args(Phase)

_NOTHING = contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One stretch of time on one track of a trace.

    Example:
        ``Span(name="backward", track="trainer", begun_s=1.7e9, duration_s=0.2, args={"rows": 12})``
    """

    name: str
    """What was done."""
    category: str
    """Its phase, or the kind of worker."""
    track: str
    """Who did it: ``trainer``, ``engine solver``, ``environment 3``."""
    begun_s: float
    """When it began, in seconds since 1970."""
    duration_s: float
    """How long it took."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Whatever helps to read it."""


@dataclass(kw_only=True, slots=True)
class Work:
    """Seconds and work of one phase; sums add up.

    Example:
        ``Work(seconds=2.0, num_tokens=4096, num_slots=4500, model_flops=1e12, hardware_flops=1.3e12)``
    """

    seconds: float = 0.0
    """Time in the phase, that of phases inside it not counted."""
    num_tokens: int = 0
    """Tokens that went through the model."""
    num_slots: int = 0
    """Places they took in its tensors, padding included."""
    model_flops: float = 0.0
    """Floating-point operations the computation needs."""
    hardware_flops: float = 0.0
    """Those that were made, with what is computed again to save memory."""

    def add(self, other: Work) -> None:
        """Add another's numbers."""
        for item in fields(Work):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class Recorder:
    """Adds up phases and keeps spans; threads may use it at once."""

    def __init__(self) -> None:
        self.is_tracing = False
        """Whether spans are kept."""
        self._lock = threading.Lock()
        self._open = threading.local()
        self._work: dict[str, Work] = defaultdict(Work)
        self._spans: list[Span] = []
        self._epoch_s = time.time() - time.perf_counter()  # one clock for all spans that nobody sets meanwhile

    @contextlib.contextmanager
    def phase(self, name: Phase, **args: Any) -> Iterator[None]:
        """Count the body's time, less that of phases within it, towards a phase."""
        stack: list[float] = self._open.__dict__.setdefault("inner_s", [])
        stack.append(0.0)
        begun = time.perf_counter()
        try:
            yield
            _await_device()
        finally:
            passed = time.perf_counter() - begun
            inner_s = stack.pop()
            if stack:
                stack[-1] += passed
            self.count(name, Work(seconds=passed - inner_s))
            if self.is_tracing:
                self._keep(name, name, "", begun, passed, args)

    def span(
        self, name: str, category: str = "", *, track: str = "", waits: bool = False, **args: Any
    ) -> AbstractContextManager[None]:
        """Record the body as a span if this step is traced.

        Args:
            name: What is done.
            category: The kind of it.
            track: Who does it; empty is the thread.
            waits: Let the span last until the device has done what the body gave it.
            args: Shown with the span.
        """
        return self._traced(name, category, track, waits, args) if self.is_tracing else _NOTHING

    def keep(self, name: str, category: str, *, track: str, begun: float) -> None:
        """Record what began at a value of `time.perf_counter` and ends now, if this step is traced."""
        if self.is_tracing:
            self._keep(name, category, track, begun, time.perf_counter() - begun, {})

    def count(self, phase: Phase, work: Work) -> None:
        """Add to the numbers of a phase."""
        with self._lock:
            self._work[phase].add(work)

    def take_work(self) -> dict[str, Work]:
        """Return the numbers by phase since they were taken last."""
        with self._lock:
            work, self._work = dict(self._work), defaultdict(Work)
        return work

    def take_spans(self) -> list[Span]:
        """Return the spans since they were taken last, by when they began."""
        with self._lock:
            spans, self._spans = self._spans, []
        return sorted(spans, key=lambda span: (span.begun_s, -span.duration_s))

    @contextlib.contextmanager
    def _traced(self, name: str, category: str, track: str, waits: bool, args: Mapping[str, Any]) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
            if waits:
                _await_device()
        finally:
            self._keep(name, category, track, begun, time.perf_counter() - begun, args)

    def _keep(
        self, name: str, category: str, track: str, begun: float, duration_s: float, args: Mapping[str, Any]
    ) -> None:
        span = Span(
            name=name,
            category=category,
            track=track or _track_of_thread(),
            begun_s=self._epoch_s + begun,
            duration_s=duration_s,
            args=args,
        )
        with self._lock:
            self._spans.append(span)


def _track_of_thread() -> str:
    thread = threading.current_thread()
    return "trainer" if thread is threading.main_thread() else thread.name


def _await_device() -> None:
    torch = sys.modules.get("torch")  # engines and recipes are read without it, and then no device works
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


RECORDER = Recorder()
"""This process's."""
