"""Environments and the threads they move on; both outlive a collection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from srpo_envs.errors import SurroundingsError
from srpo_envs.records import ActiveSet, Episode, MemberOutput, StepResult
from srpo_train.collect.jobs import EpisodeJob
from srpo_train.throughput.recorder import RECORDER
from srpo_train.workers import Finished, StepWorkers

logger = logging.getLogger(__name__)

# A retriever or sandbox that restarts needs a moment; the pauses count against the step's time limit.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class World(Protocol):
    """What collecting needs of an environment: `srpo_envs.core.SetEnv`, or one that is in another process."""

    @property
    def episode(self) -> Episode:
        """The record of the episode so far."""
        ...

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ActiveSet:
        """Start an episode and return its first active set."""
        ...

    def step(self, outputs: Iterable[MemberOutput]) -> StepResult:
        """Consume the whole pending set and move the world once."""
        ...

    def close(self) -> None:
        """End the running episode; safe to call more than once."""
        ...


Move = Callable[[], ActiveSet | None]
"""A call that moves an environment and returns its next active set; None at the end of the episode."""


class EnvPool:
    """Environments that are used again, and worker threads that move them.

    Args:
        make_env: Makes one environment; called when none is idle.
        num_workers: Moves that may run at once.
        step_retries: Further tries of a move whose surroundings failed.
    """

    def __init__(self, make_env: Callable[[], World], num_workers: int, step_retries: int) -> None:
        self._make_env = make_env
        self._step_retries = step_retries
        self._idle: list[World] = []
        self._workers = StepWorkers(num_workers)
        self._counting = threading.Lock()
        self.num_retries = 0
        """Moves made again because their surroundings failed, so far."""

    def take(self) -> World:
        """Return an environment that nobody uses."""
        return self._idle.pop() if self._idle else self._make_env()

    def give_back(self, env: World) -> None:
        """Keep an environment for another episode; it must not be moving."""
        self._idle.append(env)

    def submit(self, move: Move, on_start: Callable[[], None]) -> int:
        """Queue a move and return its key.

        Args:
            move: Tried again, with pauses, while its surroundings fail.
            on_start: Called by the worker that takes it up.
        """

        def run() -> ActiveSet | None:
            on_start()
            with RECORDER.span("move", "environment"):
                return self._with_retries(move)

        return self._workers.submit(run)

    def wait(self, timeout_s: float) -> Finished | None:
        """Return the next finished move, or None when none finishes in time."""
        return self._workers.wait(timeout_s)

    def abandon(self, key: int) -> None:
        """Leave a move behind; its environment must never be used again."""
        self._workers.abandon(key)

    def close(self) -> None:
        """Release environments and threads; safe to call more than once."""
        for env in self._idle:
            env.close()
        self._idle.clear()
        self._workers.close()

    def _with_retries(self, move: Move) -> ActiveSet | None:
        """A failed transition leaves the environment at the same pending event, so the same call may be made again."""
        for attempt in range(self._step_retries):
            try:
                return move()
            except SurroundingsError as error:
                pause_s = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                logger.info("environment step failed, trying again in %g s: %s", pause_s, error)
                time.sleep(pause_s)
                with self._counting:
                    self.num_retries += 1
        return move()


def reset_move(env: World, job: EpisodeJob) -> Move:
    """Return the move that begins an episode."""
    options = {"task_index": job.task_index, "episode_id": job.episode_id, "group_id": job.group_id}
    return lambda: env.reset(seed=job.env_seed, options=options)
