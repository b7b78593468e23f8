"""The events a run was trained on: a file of each step, which is there whole or not at all.

Files are never written to again. A run that goes on from a checkpoint takes the steps after it again, so their files go
first, as their lines of metrics do: what is in the log is what the weights have seen, once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from srpo_envs.records import Episode, write_episodes

logger = logging.getLogger(__name__)

EVENTS_FOLDER = "events"
"""In the run directory."""


class EventLog:
    """Keeps the episodes of a run's steps.

    Args:
        run_dir: The run's directory.
        kept: The episodes of all steps, of the last one, or none.
        done_steps: Steps the run has taken; files of later ones are removed, for these steps are taken again.
    """

    def __init__(self, run_dir: Path, kept: Literal["all", "last", "none"], *, done_steps: int) -> None:
        self._folder = run_dir / EVENTS_FOLDER
        self._kept = kept
        for path in self._folder.glob("step-*"):
            if path.suffix == ".partial" or (step_of(path.name) or 0) > done_steps:
                logger.info("removing %s: its step is taken again", path)
                path.unlink()

    def add(self, step: int, episodes: Sequence[Episode]) -> None:
        """Store what a step was trained on.

        Raises:
            StorageFullError: there is no room for it.
        """
        if self._kept == "none":
            return
        path = self._folder / f"step-{step:06d}.jsonl"
        write_episodes(path, episodes)
        if self._kept == "last":
            for other in self._folder.glob("step-*.jsonl"):
                if other != path:
                    other.unlink()


def step_of(name: str) -> int | None:
    """Return the training step a file of events is of; None for samples of an evaluation."""
    number = Path(name).stem.removeprefix("step-")
    return int(number) if number.isdecimal() else None
