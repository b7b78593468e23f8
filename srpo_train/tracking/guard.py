"""What every tracker is wrapped in: it cannot fail the run, gets a step once, and a bounded sample of episodes."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from srpo_envs.errors import RecordError
from srpo_envs.records import Episode
from srpo_train.metrics import Values
from srpo_train.run_dir import write_whole
from srpo_train.showcase import ShownEpisode, choose_episodes

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """A place where runs are watched; any method may fail."""

    def write(self, step: int, values: Values, episodes: Sequence[ShownEpisode]) -> None:
        """Take the values of one step, and the episodes to show of it, if any."""
        ...

    def warn(self, message: str) -> None:
        """Take a warning about the step just written."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


class Ledger:
    """What a tracker that can take nothing back was given: the id of the run there, and the last step.

    A step is noted before it is sent: a run killed between the two lacks a point there, and none is there twice.

    Args:
        path: Where it is kept, beside the run.
        name: What the id begins with.
        is_new: Whether the run begins; what an earlier one left there is forgotten.

    Raises:
        RecordError: the file is damaged.
    """

    def __init__(self, path: Path, name: str, *, is_new: bool) -> None:
        self._path = path
        known = {} if is_new else _read(path)
        self.run_id: str = known.get("run_id", f"{name}-{secrets.token_hex(4)}")
        self._last_step: int = known.get("last_step", -1)

    def take(self, step: int) -> bool:
        """Note a step and return whether it is new."""
        if step <= self._last_step:
            return False
        self._last_step = step
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, json.dumps({"run_id": self.run_id, "last_step": step}) + "\n")
        return True


class GuardedTracker:
    """A tracker as a sink of the metrics.

    Args:
        name: What people call it.
        tracker: The tracker.
        ledger: What it was given so far, where it can take nothing back.
        episodes_every: Steps between samples of episodes; 0 shows none.
        num_episodes: Episodes of a sample.
        seed: Of the sample.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        *,
        ledger: Ledger | None = None,
        episodes_every: int,
        num_episodes: int,
        seed: int,
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._ledger = ledger
        self._every = episodes_every
        self._num_episodes = num_episodes
        self._seed = seed
        self._num_failures = 0
        self._is_closed = False

    def write(self, step: int, values: Values, episodes: Sequence[Episode] = ()) -> None:
        """Hand a step on, unless the tracker has it."""
        with self._shielded(f"step {step}"):
            if self._ledger is None or self._ledger.take(step):
                is_due = bool(self._every) and step % self._every == 0
                shown = choose_episodes(episodes, self._num_episodes, self._seed + step) if is_due else []
                self._tracker.write(step, values, shown)

    def warn(self, message: str) -> None:
        """Hand a warning on."""
        with self._shielded("a warning"):
            self._tracker.warn(message)

    def close(self) -> None:
        """Finish, and say how much was lost."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._shielded("the end"):
            self._tracker.close()
        if self._num_failures > 1:
            logger.warning("%s failed %d times; metrics.jsonl has every value", self._name, self._num_failures)

    @contextlib.contextmanager
    def _shielded(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a network, a disk, the tracker itself: training does not depend on it
            self._num_failures += 1
            if self._num_failures == 1:
                logger.warning(
                    "%s failed at %s and the run goes on without: %s; further failures are counted, and metrics.jsonl "
                    "has every value",
                    self._name,
                    what,
                    error,
                )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RecordError(f"{path}: not JSON ({error}); remove it to track the run under a new id") from error
