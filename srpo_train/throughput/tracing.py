"""Which steps of a run are traced or profiled, and what that leaves in the run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from srpo_train.config import LogConfig
from srpo_train.distributed.ranks import Ranks
from srpo_train.throughput.recorder import RECORDER
from srpo_train.throughput.trace import FOLDER, trace_path, write_trace


class StepTracer:
    """Records the steps that the recipe names.

    Args:
        run_dir: Where traces go.
        settings: The recipe's.
        ranks: The run's processes, which all make the same calls; the main one writes the spans of all.
    """

    def __init__(self, run_dir: Path, settings: LogConfig, ranks: Ranks) -> None:
        self._run_dir = run_dir
        self._settings = settings
        self._ranks = ranks

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Record the body if the step is to be traced, and profile it if it is to be profiled."""
        with contextlib.ExitStack() as stack:
            if _is_due(step, self._settings):
                stack.enter_context(self._traced(step))
            if step in self._settings.profile_steps:
                stack.enter_context(self._profiled(step))
            yield

    @contextlib.contextmanager
    def _traced(self, step: int) -> Iterator[None]:
        RECORDER.take_spans()  # of work that outlasted an earlier traced step
        RECORDER.is_tracing = True
        try:
            with RECORDER.span(f"step {step}", "step", waits=True):
                yield
        finally:
            RECORDER.is_tracing = False
        spans_by_rank = self._ranks.gather(RECORDER.take_spans())
        if self._ranks.is_main:
            write_trace(trace_path(self._run_dir, step), spans_by_rank, step=step)

    @contextlib.contextmanager
    def _profiled(self, step: int) -> Iterator[None]:
        """Record every operation of torch, in the same format; much slower, and much larger."""
        with torch.profiler.profile() as profile:
            yield
        path = self._run_dir / FOLDER / f"profile-{step:06d}-rank{self._ranks.rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(path))


def _is_due(step: int, settings: LogConfig) -> bool:
    return step in settings.trace_steps or (settings.trace_every > 0 and step % settings.trace_every == 0)
