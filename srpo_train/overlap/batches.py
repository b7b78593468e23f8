"""Whole batches sampled ahead, each with weights of exactly the age the recipe allows.

The weights of a batch follow from its number alone, whatever is faster, so that a run repeats bit for bit; the price is
that samples are as old as they may be. Batch k is sampled with the weights after step ``k - 1 - max_lag``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from srpo_train.collect import EpisodeJob, Rollout
from srpo_train.overlap.source import Weights
from srpo_train.overlap.stopwatch import Stopwatch
from srpo_train.overlap.stored import read_rollout, write_rollout
from srpo_train.overlap.worker import Worker


class BatchesAhead:
    """Collects up to `max_lag` batches beyond the one in training, on a thread.

    Args:
        collect: Runs jobs to their end, on the thread; it calls its second argument now and then, which may raise.
        snapshot: Copies the trainer's weights.
        push: Gives a copy to the engines, which are at rest, and says what it took.
        jobs_of: The jobs of a training step, counted from 1.
        step: Training steps taken so far.
        num_steps: Training steps in all; nothing is sampled for later ones.
        max_lag: Updates between the weights of a batch and those it is trained on.
        stored: Folder of an earlier `save`, after as many steps.

    Raises:
        CheckpointError: what is stored cannot be read.
    """

    def __init__(
        self,
        collect: Callable[[Sequence[EpisodeJob], Callable[[], None]], Rollout],
        snapshot: Callable[[], Weights],
        push: Callable[[Weights], dict[str, float]],
        jobs_of: Callable[[int], list[EpisodeJob]],
        *,
        step: int,
        num_steps: int,
        max_lag: int,
        stored: Path | None = None,
    ) -> None:
        self._collect = collect
        self._snapshot = snapshot
        self._push = push
        self._jobs_of = jobs_of
        self._step = step
        self._num_steps = num_steps
        self._max_lag = max_lag
        self._ready = _read(stored, step) if stored else {}
        self._next = max(self._ready, default=step) + 1  # step of the batch that comes next
        self._weights = {step: snapshot()}  # by the step after which they were
        self._in_engines = step  # whose weights these have
        self._is_wanted = False  # the engines, by somebody else
        self._is_resting = True
        self._collecting = Stopwatch()
        self._num_given_up = 0
        self._push_metrics: dict[str, float] = {}
        self._worker = Worker(self._run)

    # --- the trainer's side ---------------------------------------------------------------------------------------

    def take(self) -> Iterator[Rollout]:
        """Wait for the next batch."""
        self._worker.start()
        self._worker.await_there(lambda: self._step + 1 in self._ready)
        yield self._ready[self._step + 1]

    def step_done(self, *, is_updated: bool) -> None:
        """Keep a copy of the new weights for the batch that is to be sampled with them."""
        weights = self._snapshot() if is_updated else None
        with self._worker.changed:
            del self._ready[self._step + 1]
            self._step += 1
            if weights:
                self._weights[self._step] = weights
            self._worker.changed.notify_all()

    @contextlib.contextmanager
    def at_newest(self) -> Iterator[None]:
        """Wait for the end of the batch under way, and hold the next one back."""
        with self._worker.changed:
            self._is_wanted = True
        self._worker.await_there(lambda: self._is_resting)
        try:
            self._bring(max(self._weights))
            yield
        finally:
            with self._worker.changed:
                self._is_wanted = False
                self._worker.changed.notify_all()

    def restart(self) -> None:
        """Give up every batch that was sampled ahead."""
        self._worker.stop()
        self._num_given_up += sum(_num_groups(self._jobs_of(step)) for step in range(self._step + 1, self._next))
        self._ready.clear()
        self._next = self._step + 1
        self._weights = {self._step: self._snapshot()}
        self._in_engines = -1
        self._bring(self._step)

    def metrics(self) -> dict[str, float]:
        """Return the groups that were given up, and what the last push took."""
        num_given_up, self._num_given_up = self._num_given_up, 0
        push, self._push_metrics = self._push_metrics, {}
        return {"rollout/num_stale_groups": float(num_given_up), **push}

    @property
    def collecting_s(self) -> float:
        """Seconds so far in which a batch was under way."""
        return self._collecting.seconds

    def save(self, folder: Path) -> None:
        """Write the batches whose weights a resumed run would not have; those that are not complete are waited for."""
        steps = range(self._step + 1, min(self._step + self._max_lag, self._num_steps) + 1)
        if steps:
            self._worker.start()
            self._worker.await_there(lambda: all(step in self._ready for step in steps))
            folder.mkdir()
        for step in steps:
            write_rollout(folder, _name(step), self._ready[step])

    def close(self) -> None:
        """End the thread, in the middle of a batch if need be."""
        self._worker.stop()

    # --- the thread's side ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._next <= self._num_steps:
            self._worker.await_here(lambda: not self._is_wanted and self._step >= self._next - 1 - self._max_lag)
            with self._worker.changed:
                if self._is_wanted:
                    continue
                self._is_resting = False
                self._forget_old_weights()
            try:
                self._bring(min(self._weights))
                with self._collecting:
                    rollout = self._collect(self._jobs_of(self._next), self._worker.check)
            finally:
                with self._worker.changed:
                    self._is_resting = True
            with self._worker.changed:
                self._ready[self._next] = rollout
                self._next += 1
                self._worker.changed.notify_all()

    def _forget_old_weights(self) -> None:
        """Keep the newest weights that the next batch may have, and all later ones."""
        newest = max((step for step in self._weights if step <= self._next - 1 - self._max_lag), default=None)
        if newest is not None:
            self._weights = {step: weights for step, weights in self._weights.items() if step >= newest}

    def _bring(self, step: int) -> None:
        if self._in_engines != step:
            self._push_metrics = self._push(self._weights[step])
            self._in_engines = step


def _num_groups(jobs: Sequence[EpisodeJob]) -> int:
    return len({job.group_id for job in jobs})


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _read(folder: Path, step: int) -> dict[int, Rollout]:
    """Read the batches of the steps after one."""
    numbers = sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.json"))
    return {number: read_rollout(folder, _name(number)) for number in numbers if number > step}
