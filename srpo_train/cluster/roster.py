"""Who is where, and what they have to say: one small actor on the driver's machine that everybody knows."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from srpo_envs.records import Episode
from srpo_train.metrics import Values


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A process of a run, at its place.

    Example:
        ``Seat(name="rank 0", kind="rank", node="10.0.0.1", pid=4711)``
    """

    name: str
    """What it is, such as ``engine of solver 1``."""
    kind: str
    """``rank``, ``environments`` or ``engine``."""
    node: str
    """Address of its machine."""
    pid: int
    """Its process there."""
    url: str = ""
    """Where it is asked over HTTP; empty for what is asked through Ray."""
    starts: int = 1
    """How often it has been started."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A process is there, for the first time or again."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class Said:
    """A process has something to say, as a log record."""

    name: str
    level: int
    message: str


@dataclass(frozen=True, slots=True)
class Began:
    """The main rank begins to train, or goes on from a checkpoint."""

    done_steps: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """The main rank has taken a step."""

    step: int
    values: Values


@dataclass(frozen=True, slots=True)
class Warned:
    """The main rank has a warning for whoever watches, such as an alarm."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank has met what no restart will mend."""

    error: Exception


News = Arrived | Said | Began | Stepped | Warned | Failed


class Roster:
    """Keeps the seats of a run, counts what happens to them, and passes on news in the order they came in."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._counts: Counter[str] = Counter()
        self._news: list[News] = []

    def arrive(self, seat: Seat) -> int:
        """Note that a process is there; return how often its seat had been taken before."""
        before = self._seats[seat.name].starts if seat.name in self._seats else 0
        self._seats[seat.name] = seat = replace(seat, starts=before + 1)
        self._news.append(Arrived(seat))
        return before

    def tell(self, news: News) -> None:
        """Take a piece of news."""
        self._news.append(news)

    def take_news(self) -> list[News]:
        """Return, once, what is new."""
        news, self._news = self._news, []
        return news

    def count(self, name: str) -> None:
        """Count something once more."""
        self._counts[name] += 1

    def seats(self) -> list[Seat]:
        """Return everybody, in the order of their first arrival."""
        return list(self._seats.values())

    def tally(self) -> dict[str, int]:
        """Return what was counted, and how often each kind of process was started again."""
        again = Counter(self._counts)
        for seat in self._seats.values():
            again[f"restarts of {seat.kind}"] += seat.starts - 1
        return dict(again)


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """What a process needs to make itself known; travels to it with its arguments."""

    roster: str
    """Name of the roster's actor; a handle among an actor's arguments would have to outlive its restarts."""
    name: str
    """The process's seat."""
    kind: str
    """What it is."""
    folder: str
    """The driver's working directory."""

    @property
    def actor(self) -> Any:
        """The roster."""
        import ray

        return ray.get_actor(self.roster)

    def arrive(self, url: str = "") -> Any:
        """Take the seat, in the driver's working directory where that exists.

        Returns:
            Ray's reference to how often the seat was taken before.
        """
        import ray

        if os.path.isdir(self.folder):  # so that relative paths of a recipe mean the same everywhere
            os.chdir(self.folder)
        _pass_on_warnings(self)
        node = ray.util.get_node_ip_address()
        return self.actor.arrive.remote(Seat(name=self.name, kind=self.kind, node=node, pid=os.getpid(), url=url))

    def tell(self, news: News) -> Any:
        """Send a piece of news; return Ray's reference to its arrival."""
        return self.actor.tell.remote(news)

    def count(self, name: str) -> None:
        """Count something once more."""
        self.actor.count.remote(name)


class _Courier(logging.Handler):
    """Sends log records to the driver, whose terminal is where people look."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(logging.WARNING)
        self._desk = desk

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        self._desk.tell(Said(self._desk.name, record.levelno, f"{record.name}: {record.getMessage()}"))


def _pass_on_warnings(desk: Desk) -> None:
    for name in ("srpo_envs", "srpo_train"):
        log = logging.getLogger(name)
        log.handlers = [handler for handler in log.handlers if not isinstance(handler, _Courier)]
        log.addHandler(_Courier(desk))


class RosterSink:
    """Shows a run to whoever watches the driver; what the main rank writes to in place of a terminal.

    Args:
        desk: The rank's.
        done_steps: Steps that an earlier part of the run has taken.
    """

    def __init__(self, desk: Desk, done_steps: int) -> None:
        self._desk = desk
        desk.tell(Began(done_steps))

    def write(self, step: int, values: Values, episodes: Sequence[Episode] = ()) -> None:
        """Send one step; episodes have no place on a terminal."""
        self._desk.tell(Stepped(step, dict(values)))

    def warn(self, message: str) -> None:
        """Send a warning."""
        self._desk.tell(Warned(message))

    def close(self) -> None:
        """The driver closes its terminal itself."""


def as_metrics(tally: Mapping[str, int]) -> dict[str, float]:
    """Return a tally under the names of the table of metrics."""
    return {
        "cluster/num_rank_restarts": float(tally.get("restarts of rank", 0)),
        "cluster/num_engine_restarts": float(tally.get("restarts of engine", 0)),
        "cluster/num_env_worker_restarts": float(tally.get("restarts of environments", 0)),
        "cluster/num_rebuilt_episodes": float(tally.get("rebuilt episodes", 0)),
        "cluster/num_lost_graders": float(tally.get("lost graders", 0)),
    }
