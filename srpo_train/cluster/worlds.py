"""Environments that are moved in other processes, and survive them.

An environment worker holds many environments, with their graders and tools. On this side each is a `RemoteWorld`, which
the collector takes for an environment. It keeps the record of its running episode: when its worker dies, another one
replays the record (an episode is event-sourced, see `srpo_envs.replay`) and makes the move that was under way again. No
response is sampled twice, no tool called twice, and the episode is the one it would have been.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import EnvMisuseError, WorkerLostError
from srpo_envs.grading.pool import num_lost_workers
from srpo_envs.records import ActiveSet, Episode, MemberOutput, StepResult
from srpo_train.cluster.lines import Answer, Line, answered
from srpo_train.cluster.roster import Desk
from srpo_train.config import EnvConfig

logger = logging.getLogger(__name__)

_PATIENCE_S = 30.0
"""Longest search for a worker that can take an environment over; a restart takes seconds."""
_PAUSE_S = 0.5


class WorldKey(NamedTuple):
    """An environment of one rank in one of its lives."""

    rank: int
    """Whose it is."""
    life: int
    """How often that rank had been started before."""
    number: int
    """Which of its environments."""


class _NotHereError(WorkerLostError):
    """A worker was restarted and knows nothing of an environment."""


class EnvHost:
    """The environments of one worker."""

    def __init__(self) -> None:
        self._envs: dict[WorldKey, SetEnv] = {}
        self._lives: dict[int, int] = {}
        self._lock = threading.Lock()

    def reset(
        self, key: WorldKey, config: EnvConfig, seed: int | None, options: Mapping[str, Any] | None
    ) -> tuple[ActiveSet, Episode]:
        """Start an episode, in an environment that is made when it is asked for for the first time."""
        env = self._env(key, config)
        return env.reset(seed=seed, options=options), env.episode

    def step(self, key: WorldKey, outputs: Sequence[MemberOutput]) -> tuple[StepResult, Episode | None]:
        """Move an environment; return the whole record when the episode has ended.

        Raises:
            WorkerLostError: there is no such environment, because the worker was restarted.
        """
        env = self._envs.get(key)
        if env is None:
            raise _NotHereError("the environment worker was restarted")
        result = env.step(outputs)
        return result, None if result.next else env.episode

    def resume(self, key: WorldKey, config: EnvConfig, record: Episode) -> None:
        """Bring an environment to where another worker had it."""
        self._env(key, config).resume(record)

    def close_world(self, key: WorldKey) -> None:
        """Release an environment."""
        with self._lock:
            env = self._envs.pop(key, None)
        if env:
            env.close()

    def _env(self, key: WorldKey, config: EnvConfig) -> SetEnv:
        if key not in self._envs:
            env = srpo_envs.make(config.id, **config.kwargs)
            with self._lock:
                self._forget_earlier_lives(key)
                self._envs[key] = env
        return self._envs[key]

    def _forget_earlier_lives(self, key: WorldKey) -> None:
        """Drop what a rank left behind when it died; some of it may still move, so nothing is closed."""
        if self._lives.get(key.rank) != key.life:
            self._lives[key.rank] = key.life
            for old in [old for old in self._envs if old.rank == key.rank and old.life != key.life]:
                del self._envs[old]


class EnvWorker:
    """The Ray actor around an `EnvHost`: every call has a thread of its own, so that one that hangs holds up no other.

    Args:
        desk: Tells the driver that this worker is there.
    """

    def __init__(self, desk: Desk) -> None:
        desk.arrive()
        self._desk = desk
        self._num_losses_told = 0
        self._host = EnvHost()

    async def ready(self) -> Answer:
        """Answer once the worker is up."""
        return Answer()

    async def ask(self, method: str, *arguments: Any) -> Answer:
        """Call a method of the host."""
        call = getattr(self._host, method)
        answer = await _in_thread(lambda: answered(lambda: call(*arguments)))
        self._tell_losses()
        return answer

    def _tell_losses(self) -> None:
        while self._num_losses_told < num_lost_workers():
            self._num_losses_told += 1
            self._desk.count("lost graders")


async def _in_thread(call: Callable[[], Answer]) -> Answer:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def run() -> None:
        loop.call_soon_threadsafe(future.set_result, call())

    threading.Thread(target=run, name="srpo-env", daemon=True).start()
    return await future


class EnvWorkers:
    """The workers of a run, as one rank sees them.

    Args:
        lines: At least one.
        rank: Whose environments they hold.
        life: How often that rank had been started before.
        on_rebuilt: Called when an episode went on with another worker.
        patience_s: How long to look for a worker that can take an environment over.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        *,
        rank: int = 0,
        life: int = 0,
        on_rebuilt: Callable[[], None] = lambda: None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._lines = list(lines)
        self._rank = rank
        self._life = life
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._num_worlds = {line.name: 0 for line in lines}
        self.on_rebuilt = on_rebuilt
        self.patience_s = patience_s

    def make(self, config: EnvConfig) -> RemoteWorld:
        """Return a new environment, on the worker with the fewest."""
        key = WorldKey(self._rank, self._life, next(self._numbers))
        return RemoteWorld(self, key, config)

    def take(self, but_not: Line | None = None) -> Line:
        """Return the worker with the fewest environments, and count one more."""
        with self._lock:
            # Ranks begin at different workers, so that a few environments of each do not meet at the first one.
            turned = self._lines[self._rank % len(self._lines) :] + self._lines[: self._rank % len(self._lines)]
            others = [line for line in turned if line is not but_not] or turned
            line = min(others, key=lambda line: self._num_worlds[line.name])
            self._num_worlds[line.name] += 1
        return line

    def leave(self, line: Line) -> None:
        """Count one environment less."""
        with self._lock:
            self._num_worlds[line.name] -= 1


class RemoteWorld:
    """An environment in a worker; what the collector moves.

    Args:
        workers: Where it may be.
        key: Its name there.
        config: What it is.
    """

    def __init__(self, workers: EnvWorkers, key: WorldKey, config: EnvConfig) -> None:
        self._workers = workers
        self._key = key
        self._config = config
        self._line = workers.take()
        self._record: Episode | None = None

    @property
    def episode(self) -> Episode:
        """The record of the episode so far; team returns are filled once it is over.

        Raises:
            EnvMisuseError: before the first reset.
        """
        if self._record is None:
            raise EnvMisuseError(f"{self._config.id}: call reset() first")
        return self._record

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ActiveSet:
        """Start an episode and return its first active set; errors are those of `SetEnv.reset`.

        Raises:
            WorkerLostError: there was no worker for too long.
        """
        self._record = None
        active: ActiveSet
        active, self._record = self._ask("reset", self._config, seed, options)
        return active

    def step(self, outputs: Iterable[MemberOutput]) -> StepResult:
        """Consume the whole pending set and move the world once; errors are those of `SetEnv.step`.

        Raises:
            WorkerLostError: there was no worker for too long.
            ReplayError: the worker died, and the episode came out differently in another one.
        """
        record = self.episode
        result: StepResult
        result, final = self._ask("step", tuple(outputs))
        self._record = final or dataclasses.replace(record, events=(*record.events, result.event))
        return result

    def close(self) -> None:
        """Release it there; nobody waits for that."""
        self._record = None
        self._workers.leave(self._line)
        try:
            self._line.send("ask", "close_world", self._key)
        except WorkerLostError:
            logger.debug("%s: gone before it could be closed", self._key)

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the worker; when it is lost, go on with another, from the record."""
        end = time.monotonic() + self._workers.patience_s
        is_rebuilding = False
        while True:
            try:
                if is_rebuilding and self._record:
                    self._line.send("ask", "resume", self._key, self._config, self._record)()
                answer = self._line.send("ask", method, self._key, *arguments)()
            except WorkerLostError as error:
                if time.monotonic() > end:
                    raise
                logger.info("%s; episode %s goes on elsewhere", error, self._record and self._record.episode_id)
                if is_rebuilding:  # a restart takes a moment
                    time.sleep(_PAUSE_S)
                self._move(is_same_worker=isinstance(error, _NotHereError))
                is_rebuilding = True
            else:
                if is_rebuilding:
                    self._workers.on_rebuilt()
                return answer

    def _move(self, *, is_same_worker: bool) -> None:
        if not is_same_worker:
            self._workers.leave(self._line)
            self._line = self._workers.take(but_not=self._line)
