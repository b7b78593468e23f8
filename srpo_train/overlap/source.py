"""Where the episodes of a training step come from, and when the engines get new weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from srpo_train.collect import EpisodeJob, Rollout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A copy of what an update made, on its way to the engines.

    Example:
        ``Weights(version=3, by_policy={"team": (3, {"lm_head.weight": tensor, ...})})``
    """

    version: int
    """Updates behind them."""
    by_policy: Mapping[str, tuple[int, Mapping[str, Tensor]]]
    """Version and tensors of each trained policy."""


class RolloutSource(Protocol):
    """Gives the trainer one step's episodes after the other.

    A step is `take`, then `step_done`. All calls come from the trainer's thread.
    """

    def take(self) -> Iterator[Rollout]:
        """Yield the episodes of the next step, whole groups of them, in one part or as the parts are complete.

        Raises:
            NoEpisodeError: nothing came through, for too long.
            SrpoError: an engine or the environments cannot work.
        """
        ...

    def step_done(self, *, is_updated: bool) -> None:
        """Take note that the step is over, and let the engines have the new weights if there are some."""
        ...

    def at_newest(self) -> AbstractContextManager[None]:
        """Let somebody else ask the engines in the body; they are at rest and have the newest weights."""
        ...

    def restart(self) -> None:
        """Give up what was sampled ahead and begin again with the trainer's weights, which are no longer its own."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return what was given up and what pushes of weights took since the last call, as metrics."""
        ...

    @property
    def collecting_s(self) -> float:
        """Seconds so far in which episodes were under way beside the trainer."""
        ...

    def save(self, folder: Path) -> None:
        """Write what was sampled ahead into a new folder, if there is something."""
        ...

    def close(self) -> None:
        """End all work; safe to call more than once."""
        ...


class InTurn:
    """Collects a step when it is asked for, and publishes when it is over: samples are never stale.

    Args:
        collect: Runs jobs to their end.
        publish: Brings the engines up to date and says what it took.
        jobs_of: The jobs of a training step, counted from 1.
        step: Training steps taken so far.
    """

    def __init__(
        self,
        collect: Callable[[Sequence[EpisodeJob]], Rollout],
        publish: Callable[[], dict[str, float]],
        jobs_of: Callable[[int], list[EpisodeJob]],
        *,
        step: int,
    ) -> None:
        self._collect = collect
        self._publish = publish
        self._jobs_of = jobs_of
        self._step = step
        self._metrics: dict[str, float] = {}

    def take(self) -> Iterator[Rollout]:
        """Collect the next step."""
        yield self._collect(self._jobs_of(self._step + 1))

    def step_done(self, *, is_updated: bool) -> None:
        """Bring the engines up to date."""
        self._step += 1
        if is_updated:
            self._metrics = self._publish()

    def at_newest(self) -> AbstractContextManager[None]:
        """Do nothing: so they are."""
        return contextlib.nullcontext()

    def restart(self) -> None:
        """Bring the engines up to date."""
        self._metrics = self._publish()

    def metrics(self) -> dict[str, float]:
        """Return what the last push took."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    @property
    def collecting_s(self) -> float:
        """Nothing goes on beside the trainer."""
        return 0.0

    def save(self, folder: Path) -> None:
        """Do nothing: nothing was sampled ahead."""

    def close(self) -> None:
        """Do nothing."""
