"""The asynchronous order of work: every episode advances as soon as its own event is complete.

One thread, the caller's, goes round: it takes what environments have finished, asks for all new events, and polls each
engine that has work once. Engines that sample in this process get a decoding step out of every round; served ones are
waited for in slices so short that neither another engine nor an environment that has moved waits noticeably. Requests
of one active set are submitted together, and the event commits when all of them are in.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from srpo_envs.errors import EngineError
from srpo_train.collect.collection import TICK_S, Collection, Slot
from srpo_train.collect.requests import Requester, is_worth_a_retry, request_id
from srpo_train.engines.base import Generation, GenerationRequest, Sampling, StreamingEngine, sampling_of
from srpo_train.throughput.recorder import RECORDER

logger = logging.getLogger(__name__)

_SLICE_S = 0.002
"""Longest wait for engines while something else may happen."""


@dataclass(slots=True)
class _Open:
    """A request under way."""

    slot: Slot
    request: GenerationRequest
    since: float
    retries_left: int


class Asynchronous:
    """Drives a collection without any barrier between its episodes.

    Args:
        collection: The episodes.
        engines: Engine of each policy id.
        requester: Writes the requests.
        sampling: How tokens are drawn, by all policies or by each.
        retries: Further tries of a response that the engine gave up.
        request_timeout_s: How long one try of a response may take, its wait in the engine's queue included, before
            the episode is dropped.
        episode_timeout_s: How long an episode may take from its first move before it is dropped.
    """

    def __init__(
        self,
        collection: Collection,
        engines: Mapping[str, StreamingEngine],
        requester: Requester,
        sampling: Sampling | Mapping[str, Sampling],
        *,
        retries: int,
        request_timeout_s: float,
        episode_timeout_s: float,
    ) -> None:
        self._collection = collection
        self._engines = engines
        self._requester = requester
        self._sampling = sampling
        self._retries = retries
        self._request_timeout_s = request_timeout_s
        self._episode_timeout_s = episode_timeout_s
        self._open: dict[str, dict[str, _Open]] = {policy_id: {} for policy_id in engines}  # then by request id
        self._busy_since: dict[str, float] = {}
        self._unsettled: set[str] = set()
        self._next_look = 0.0

    def run(self, on_progress: Callable[[], None]) -> None:
        """Bring every episode to its end; leave the engines at rest, whatever happens.

        Args:
            on_progress: Called after every turn.

        Raises:
            EngineError: an engine failed as a whole.
        """
        try:
            while self._collection.is_running:
                self.turn()
                on_progress()
        finally:
            self.settle()

    def turn(self, *, may_ask: bool = True) -> None:
        """Go round once.

        Args:
            may_ask: Whether new events are asked for; without it the engines come to rest by and by.

        Raises:
            EngineError: an engine failed as a whole.
        """
        self._collection.start_waiting()
        self._take_moves()
        self._give_up_surplus()
        if may_ask:
            self._ask()
        self._poll()
        self._enforce_deadlines()

    @property
    def is_at_rest(self) -> bool:
        """Whether no engine has work, and nothing of what was withdrawn can still come."""
        if self._busy:
            return False
        self._await_withdrawn()
        return True

    @property
    def _busy(self) -> list[str]:
        """The policies whose engines have work."""
        return [policy_id for policy_id, under_way in self._open.items() if under_way]

    # --- environments ---------------------------------------------------------------------------------------------

    def _take_moves(self) -> None:
        """Take note of all environments that have moved; wait for one only if no engine has work."""
        collection, begun, is_generating = self._collection, time.monotonic(), bool(self._busy)
        timeout_s = 0.0 if is_generating else TICK_S
        while collection.is_moving and collection.await_move(timeout_s):
            timeout_s = 0.0
        if not is_generating:
            collection.env_s += time.monotonic() - begun

    def _give_up_surplus(self) -> None:
        for slot in self._collection.take_surplus():
            self._withdraw(slot)
            self._collection.give_up_surplus(slot)

    # --- engines --------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Submit the requests of all new events, one call per policy."""
        now = time.monotonic()
        by_policy: dict[str, list[GenerationRequest]] = defaultdict(list)
        for slot in self._collection.take_ready():
            assert slot.pending is not None
            for policy_id, request in self._requester.requests(slot.pending):
                by_policy[policy_id].append(request)
                self._open[policy_id][request.request_id] = _Open(slot, request, now, self._retries)
        for policy_id, requests in by_policy.items():
            self._submit(policy_id, requests)

    def _submit(self, policy_id: str, requests: list[GenerationRequest]) -> None:
        self._busy_since.setdefault(policy_id, time.perf_counter())
        self._engines[policy_id].submit(requests, sampling_of(self._sampling, policy_id))

    def _poll(self) -> None:
        """Give each engine that has work its turn, and take what it has finished."""
        begun, busy = time.monotonic(), self._busy
        is_only_source = len(busy) == 1 and not self._collection.is_moving
        wait_s = TICK_S if is_only_source else _SLICE_S / max(len(busy), 1)
        for policy_id in busy:
            answers = self._engines[policy_id].poll(wait_s)
            for answer in answers:
                self._receive(policy_id, answer)
            if answers:
                wait_s = 0.0
            if not self._open[policy_id]:
                since = self._busy_since.pop(policy_id)
                RECORDER.keep("responses under way", "generate", track=f"engine {policy_id}", begun=since)
        self._collection.generate_s += time.monotonic() - begun

    def _receive(self, policy_id: str, answer: Generation) -> None:
        open_ = self._open[policy_id].get(answer.request_id)
        if open_ is None:  # withdrawn
            return
        if is_worth_a_retry(answer) and open_.retries_left:
            open_.retries_left -= 1
            open_.since = time.monotonic()
            self._submit(policy_id, [open_.request])
            return
        del self._open[policy_id][answer.request_id]
        open_.slot.answers[answer.request_id] = answer
        if open_.slot.is_answered:
            self._collection.commit(open_.slot)

    def _withdraw(self, slot: Slot) -> None:
        """Give up what is still being sampled for an episode."""
        if slot.pending is not None:
            names = [request_id(slot.pending, member) for member in slot.pending.members]
            for policy_id in self._engines:
                self._cancel(policy_id, names)

    def _cancel(self, policy_id: str, request_ids: Iterable[str]) -> None:
        under_way = self._open[policy_id]
        if names := [name for name in request_ids if under_way.pop(name, None) is not None]:
            self._unsettled.add(policy_id)
            self._engines[policy_id].cancel(names)

    def settle(self) -> None:
        """Leave no engine at work: a later collection uses the same request ids, and the weights may change now."""
        for policy_id, under_way in self._open.items():
            with _logged():
                self._cancel(policy_id, list(under_way))
        self._await_withdrawn()

    def _await_withdrawn(self) -> None:
        """Wait until nothing can come any more of requests that were cancelled."""
        unsettled, self._unsettled = self._unsettled, set()
        for policy_id in unsettled:
            with _logged():
                self._engines[policy_id].poll(0.0)

    # --- deadlines ------------------------------------------------------------------------------------------------

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + TICK_S
        self._collection.drop_hung()
        for under_way in self._open.values():
            for name, open_ in list(under_way.items()):
                if now - open_.since >= self._request_timeout_s and name in under_way:  # else withdrawn just now
                    self._expire(open_.slot, f"response {name!r} took over {self._request_timeout_s:g} s")
        for slot in self._collection.running:
            if now - slot.running_since >= self._episode_timeout_s:
                self._expire(slot, f"the episode took over {self._episode_timeout_s:g} s")

    def _expire(self, slot: Slot, reason: str) -> None:
        self._withdraw(slot)
        self._collection.fail(slot, reason, is_expired=True)


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """An engine that fails while it is tidied up has failed before, and that is the error to be seen."""
    try:
        yield
    except EngineError as error:
        logger.warning("engine failed while requests were withdrawn: %s", error)
