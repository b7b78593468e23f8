"""What is going on in a run: news are passed on, and a file says who is where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from srpo_envs.errors import RankLostError, SrpoError
from srpo_train.cluster.roster import Arrived, Failed, News, Seat
from srpo_train.run_dir import write_whole

PLACEMENT_FILE = "placement.json"
"""Who is where, with process ids, as it is now; in the run directory."""

_LISTEN_S = 0.25


class RunningTraining(Protocol):
    """Training that goes on beside whoever watches it."""

    error: BaseException | None
    """What it ended with, once it is over."""

    def is_over(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came."""
        ...


class Watch:
    """Passes on what the processes of a run tell, and keeps the file that says where they are.

    Args:
        run_dir: Where the file is.
        take_news: Returns, once, what is new.
        seats: Returns who is where now.
        on_news: Called with every piece of news.
    """

    def __init__(
        self,
        run_dir: Path,
        take_news: Callable[[], list[News]],
        seats: Callable[[], list[Seat]],
        on_news: Callable[[News], None],
    ) -> None:
        self._run_dir = run_dir
        self._take_news = take_news
        self._seats = seats
        self._on_news = on_news

    def until(self, training: RunningTraining) -> None:
        """Listen until training is over.

        Raises:
            SrpoError: what a rank says no restart will mend.
            RankLostError: Ray Train has given up.
        """
        is_over = False
        while not is_over:
            is_over = training.is_over(_LISTEN_S)
            self._listen()
        if training.error:
            raise RankLostError(
                f"training ended: {reason_of(training.error)}; see {self._run_dir} and go on with --resume"
            )

    def _listen(self) -> None:
        news = self._take_news()
        if any(isinstance(item, Arrived) for item in news):
            self._write_placement(self._seats())
        for item in news:
            if isinstance(item, Failed):
                raise item.error
            self._on_news(item)

    def _write_placement(self, seats: Sequence[Seat]) -> None:
        places = {"driver": {"pid": os.getpid()}, "seats": [asdict(seat) for seat in seats]}
        write_whole(self._run_dir / PLACEMENT_FILE, json.dumps(places, indent=2) + "\n")


def reason_of(error: BaseException) -> str:
    """Say in one line what is below Ray's own words."""
    for inner in (*getattr(error, "worker_failures", {}).values(), getattr(error, "cause", None)):
        if inner is not None:
            return reason_of(inner)
    if isinstance(error, SrpoError):
        return str(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
