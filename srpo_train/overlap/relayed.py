"""Rollouts during updates for many ranks: the main one samples ahead, and tells all what there is to train on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from srpo_train.collect import Rollout
from srpo_train.distributed.ranks import Ranks
from srpo_train.overlap.source import RolloutSource, Weights


class Relayed:
    """A source whose thread runs beside the main rank only, and which is the same to every rank.

    The engines are in other processes, so one rank is enough to ask them. Its thread never meets the other ranks: what
    they do together (telling what there is to train on, putting spread weights together for a copy) the trainers do, at
    the same calls on every rank.

    Args:
        make: Makes the main rank's own source, which copies the weights with `snapshot` at once, at each `step_done`
            with an update and at each `restart`.
        snapshot: Copies the trainer's weights; called by every rank as often as by the main one's source.
        ranks: The run's processes, which all make the same calls; `save` alone is the main rank's.
    """

    def __init__(self, make: Callable[[], RolloutSource], snapshot: Callable[[], Weights], ranks: Ranks) -> None:
        self._snapshot = snapshot
        self._ranks = ranks
        self._own = make() if ranks.is_main else None
        if not self._own:
            snapshot()

    def take(self) -> Iterator[Rollout]:
        """Wait until the main rank has the next part, and yield it on every rank."""
        own = self._own.take() if self._own else iter(())
        while (rollout := self._ranks.from_main(lambda: next(own, None))) is not None:
            yield rollout

    def step_done(self, *, is_updated: bool) -> None:
        """Copy the weights together, and offer them to the engines."""
        if self._own:
            self._own.step_done(is_updated=is_updated)
        elif is_updated:
            self._snapshot()

    @contextlib.contextmanager
    def at_newest(self) -> Iterator[None]:
        """Hold the ranks up until the main one's engines are at rest and have the newest weights."""
        with contextlib.ExitStack() as stack:
            own = self._own
            self._ranks.from_main(lambda: stack.enter_context(own.at_newest()) if own else None)
            yield

    def restart(self) -> None:
        """Give up what was sampled ahead."""
        if self._own:
            self._own.restart()
        else:
            self._snapshot()

    def metrics(self) -> dict[str, float]:
        """Return those of the main rank, on it."""
        return self._own.metrics() if self._own else {}

    @property
    def collecting_s(self) -> float:
        """Seconds so far in which episodes were under way, as the main rank knows."""
        return self._own.collecting_s if self._own else 0.0

    def save(self, folder: Path) -> None:
        """Write what was sampled ahead, on the main rank."""
        if self._own:
            self._own.save(folder)

    def close(self) -> None:
        """End the thread."""
        if self._own:
            self._own.close()
