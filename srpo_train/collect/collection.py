"""The episodes of one collection: which wait, which move, which are ready to be asked, how each one ended.

Both orders of work drive this class: they call `start_waiting` and `await_move`, generate for what `take_ready` gives
them, and call `commit` once a slot has all its answers.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from srpo_envs.errors import (
    BudgetOverrunError,
    ConfigError,
    EnvMisuseError,
    JavaRuntimeError,
    MemberMismatchError,
    MissingExtraError,
    MissingPackageError,
    SearchIndexError,
    SurroundingsError,
    UnknownIdError,
)
from srpo_envs.records import ActiveSet
from srpo_train.collect.environments import EnvPool, Move, World, reset_move
from srpo_train.collect.jobs import EpisodeJob, FailedEpisode
from srpo_train.collect.requests import Requester, request_id
from srpo_train.collect.tally import Ends
from srpo_train.engines.base import Generation

logger = logging.getLogger(__name__)

TICK_S = 0.05
"""Longest wait between two looks at the deadlines."""

_MISUSE = (
    ConfigError,
    EnvMisuseError,
    JavaRuntimeError,
    MemberMismatchError,
    MissingExtraError,
    MissingPackageError,
    SearchIndexError,
    UnknownIdError,
)
"""An environment driven wrongly, or one that lacks what it needs: every episode would meet it, so none is dropped."""


@dataclass(slots=True, eq=False)
class Slot:
    """One running episode."""

    order: int
    """Place of its job in the collection."""
    job: EpisodeJob
    """What was asked for."""
    env: World
    """Its environment, its own while it runs."""
    pending: ActiveSet | None = None
    """The set that is or was asked last."""
    answers: dict[str, Generation] = field(default_factory=dict)
    """By request id, what has come in for the pending set."""
    move_key: int | None = None
    """The move that a worker makes or will make; None while the episode waits for answers."""
    moving_since: float = math.inf
    """When a worker took the move up: waiting for a worker does not count against the limits."""
    running_since: float = math.inf
    """When a worker took the first move up."""
    is_late: bool = False
    """The move has missed its round."""

    @property
    def is_answered(self) -> bool:
        """Whether every member of the pending set has its answer."""
        return self.pending is not None and len(self.answers) == self.pending.cardinality


class Collection:
    """Episodes under way; more may join at any time, and each is told of once, when it ends.

    Args:
        envs: Where environments come from and move.
        requester: Turns generations into outputs.
        ends: Told of each episode as it ends, in whatever way.
        max_concurrent: Episodes that may run at once.
        step_timeout_s: How long one environment step may take before its episode is dropped.
        keep_per_group: Episodes after which a group is complete, and the rest of it given up; None keeps all.
    """

    def __init__(
        self,
        envs: EnvPool,
        requester: Requester,
        ends: Ends,
        *,
        max_concurrent: int,
        step_timeout_s: float,
        keep_per_group: int | None = None,
    ) -> None:
        self._envs = envs
        self._requester = requester
        self._ends = ends
        self._max_concurrent = max_concurrent
        self._step_timeout_s = step_timeout_s
        self._keep_per_group = keep_per_group
        self._orders = itertools.count()
        self._waiting: deque[tuple[int, EpisodeJob]] = deque()
        self._running: dict[int, Slot] = {}
        self._moving: dict[int, Slot] = {}
        self._ready: dict[int, Slot] = {}
        self._num_open: Counter[str] = Counter()  # of each group: jobs that have not ended
        self._num_kept: Counter[str] = Counter()
        self._newly_complete: set[str] = set()
        self._num_retries_before = envs.num_retries
        self.num_stragglers = 0
        """Moves that missed their round."""
        self.generate_s = 0.0
        """Seconds in engines, counted by whoever generates."""
        self.env_s = 0.0
        """Seconds of waiting for environments, counted likewise."""

    def add(self, jobs: Sequence[EpisodeJob]) -> None:
        """Add episodes, whole groups of them; they begin at the next `start_waiting`."""
        self._waiting.extend(zip(self._orders, jobs, strict=False))
        self._num_open.update(job.group_id for job in jobs)

    @property
    def num_retries(self) -> int:
        """Moves made again because their surroundings failed."""
        return self._envs.num_retries - self._num_retries_before

    # --- the state of things --------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether an episode is not at its end yet."""
        return bool(self._waiting or self._running)

    @property
    def running(self) -> list[Slot]:
        """Every episode that has begun and not ended."""
        return list(self._running.values())

    @property
    def moving(self) -> list[Slot]:
        """Those of them whose environments move."""
        return list(self._moving.values())

    @property
    def is_moving(self) -> bool:
        """Whether an environment moves."""
        return bool(self._moving)

    @property
    def is_ready(self) -> bool:
        """Whether an episode has a new pending set."""
        return bool(self._ready)

    # --- moves ----------------------------------------------------------------------------------------------------

    def start_waiting(self) -> None:
        """Begin as many waiting episodes as may run."""
        while self._waiting and len(self._running) < self._max_concurrent:
            order, job = self._waiting.popleft()
            if self._is_complete(job.group_id):
                self._ends.given_up(job)
                self._close(job.group_id)
                continue
            slot = Slot(order, job, self._envs.take())
            self._running[order] = slot
            self._move(slot, reset_move(slot.env, job))

    def await_move(self, timeout_s: float) -> bool:
        """Wait for the next environment to have moved and take note of where it is.

        Returns:
            Whether one moved in time.

        Raises:
            SrpoError: an environment is driven wrongly or cannot work.
        """
        finished = self._envs.wait(timeout_s)
        if finished is None:
            return False
        slot = self._moving.pop(finished.key, None)
        if slot is not None:  # else it was dropped, or an earlier collection ended before it
            slot.move_key = None
            self._arrive(slot, finished.value, finished.error)
        return True

    def take_ready(self) -> list[Slot]:
        """Return, once, the episodes with a new pending set, in job order whichever moved first."""
        ready, self._ready = self._ready, {}
        return sorted(ready.values(), key=lambda slot: slot.order)

    def commit(self, slot: Slot) -> None:
        """Hand the answers of a pending set to its environment, or drop the episode if the engine gave one up.

        Raises:
            EngineError: tokens and log-probabilities of a generation do not match.
        """
        active = slot.pending
        assert active is not None
        outputs = self._requester.outputs(active, slot.answers)
        aborted = [output.member_index for output in outputs if output.finish_reason == "abort"]
        if not aborted:
            env = slot.env
            self._move(slot, lambda: env.step(outputs).next)
            return
        first = slot.answers[request_id(active, next(m for m in active.members if m.index == aborted[0]))]
        self.fail(
            slot,
            f"event {active.event_id!r}: the engine gave up member_index {aborted} ({first.abort_reason})",
            is_unanswerable=first.is_hopeless,
        )

    def drop_hung(self) -> None:
        """Drop every episode whose environment takes too long to move."""
        now = time.monotonic()
        for slot in self.moving:
            if now - slot.moving_since >= self._step_timeout_s:
                self.fail(slot, f"environment step took over {self._step_timeout_s:g} s", is_expired=True)

    def _move(self, slot: Slot, move: Move) -> None:
        slot.moving_since, slot.is_late = math.inf, False

        def on_start() -> None:
            slot.moving_since = time.monotonic()
            slot.running_since = min(slot.running_since, slot.moving_since)

        slot.move_key = self._envs.submit(move, on_start)
        self._moving[slot.move_key] = slot

    def _arrive(self, slot: Slot, active: ActiveSet | None, error: BaseException | None) -> None:
        if error is not None:
            self._take_error(slot, error)
        elif active is not None:
            slot.pending, slot.answers = active, {}
            self._ready[slot.order] = slot
        elif self._is_complete(slot.job.group_id):
            self.give_up_surplus(slot)
        else:
            self._finish(slot)

    def _take_error(self, slot: Slot, error: BaseException) -> None:
        del self._running[slot.order]  # what state its environment is in is not known, so nobody uses it again
        if not isinstance(error, Exception) or isinstance(error, _MISUSE):
            raise error
        # The reason says all about failed surroundings; anything else may be a fault of the environment's own code.
        trace = None if isinstance(error, (SurroundingsError, BudgetOverrunError)) else error
        self._record_failure(
            slot,
            f"{type(error).__name__}: {error}",
            trace=trace,
            is_unanswerable=isinstance(error, BudgetOverrunError),
        )

    # --- ends -----------------------------------------------------------------------------------------------------

    def fail(self, slot: Slot, reason: str, *, is_unanswerable: bool = False, is_expired: bool = False) -> None:
        """Drop an episode and tell of it."""
        self._release(slot)
        self._record_failure(slot, reason, is_unanswerable=is_unanswerable, is_expired=is_expired)

    def take_surplus(self) -> list[Slot]:
        """Return, once, the running episodes whose group has become complete without them."""
        if not self._newly_complete:
            return []
        complete, self._newly_complete = self._newly_complete, set()
        return [slot for slot in self._running.values() if slot.job.group_id in complete]

    def give_up_surplus(self, slot: Slot) -> None:
        """End an episode whose group is complete without it."""
        self._release(slot)
        self._ends.given_up(slot.job)
        self._close(slot.job.group_id)

    def abandon(self) -> None:
        """End every running episode without a word, because the collection ends with an exception."""
        for slot in self.running:
            self._release(slot)

    def _finish(self, slot: Slot) -> None:
        group_id, episode = slot.job.group_id, slot.env.episode
        self._release(slot)
        self._ends.finished(slot.job, episode)
        self._num_kept[group_id] += 1
        if self._is_complete(group_id):
            self._newly_complete.add(group_id)
        self._close(group_id)

    def _close(self, group_id: str) -> None:
        """Take note that an episode of a group has ended; of a group without any left, forget everything."""
        self._num_open[group_id] -= 1
        if not self._num_open[group_id]:
            del self._num_open[group_id]
            self._num_kept.pop(group_id, None)
            self._newly_complete.discard(group_id)

    def _is_complete(self, group_id: str) -> bool:
        return self._keep_per_group is not None and self._num_kept[group_id] >= self._keep_per_group

    def _record_failure(
        self,
        slot: Slot,
        reason: str,
        *,
        trace: Exception | None = None,
        is_unanswerable: bool = False,
        is_expired: bool = False,
    ) -> None:
        logger.warning("episode %s dropped: %s", slot.job.episode_id, reason, exc_info=trace)
        failed = FailedEpisode(
            job=slot.job,
            reason=reason,
            num_events=0 if slot.pending is None else int(slot.pending.event_id.rpartition("/e")[2]),
            is_unanswerable=is_unanswerable,
            is_expired=is_expired,
        )
        self._ends.failed(failed)
        self._close(slot.job.group_id)

    def _release(self, slot: Slot) -> None:
        """Take an episode off the running ones; an environment that still moves is left behind with its move."""
        del self._running[slot.order]
        self._ready.pop(slot.order, None)
        if slot.move_key is None:
            self._envs.give_back(slot.env)
        else:
            del self._moving[slot.move_key]
            self._envs.abandon(slot.move_key)
