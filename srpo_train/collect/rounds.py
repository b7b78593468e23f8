"""The lock-step order of work: everything that is pending is sampled as one batch, then everything moves.

The next round starts when all environments have moved, which keeps the batches, and so the floating-point results, the
same in every run. An environment that needs longer than the grace period joins a later round; one that fails or hangs
is dropped and counted.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from srpo_train.collect.collection import TICK_S, Collection, Slot
from srpo_train.collect.requests import Requester, is_worth_a_retry
from srpo_train.engines.base import Engine, GenerationRequest, Sampling, sampling_of
from srpo_train.throughput.recorder import RECORDER


class Rounds:
    """Drives a collection in rounds.

    Args:
        collection: The episodes.
        engines: Engine of each policy id.
        requester: Writes the requests.
        sampling: How tokens are drawn, by all policies or by each.
        retries: Further tries of a response that the engine gave up.
        grace_s: How long a round waits for slow environments before it generates without them.
    """

    def __init__(
        self,
        collection: Collection,
        engines: Mapping[str, Engine],
        requester: Requester,
        sampling: Sampling | Mapping[str, Sampling],
        *,
        retries: int,
        grace_s: float,
    ) -> None:
        self._collection = collection
        self._engines = engines
        self._requester = requester
        self._sampling = sampling
        self._retries = retries
        self._grace_s = grace_s

    def run(self, on_progress: Callable[[], None]) -> None:
        """Bring every episode to its end.

        Args:
            on_progress: Called after every round.

        Raises:
            EngineError: an engine failed as a whole.
        """
        while self._collection.is_running:
            self._collection.start_waiting()
            self._gather()
            self._generate()
            on_progress()

    def _gather(self) -> None:
        """Wait until every environment has moved, or the grace period is over and there is something to generate."""
        collection, begun = self._collection, time.monotonic()
        with RECORDER.span("await environments", "environment"):
            self._await_moves(begun)
        for slot in collection.moving:
            collection.num_stragglers += not slot.is_late
            slot.is_late = True
        collection.env_s += time.monotonic() - begun

    def _await_moves(self, begun: float) -> None:
        collection = self._collection
        while collection.is_moving:
            grace_left = begun + self._grace_s - time.monotonic() if collection.is_ready else math.inf
            if grace_left <= 0:
                break
            if not collection.await_move(min(TICK_S, grace_left)):
                collection.drop_hung()

    def _generate(self) -> None:
        """Sample every member of every pending event, one batch per policy, and send complete sets on their way."""
        collection, begun = self._collection, time.monotonic()
        slots = collection.take_ready()  # by job, so that the numbers of a batch do not depend on thread timing
        slot_of = {}
        by_policy: dict[str, list[GenerationRequest]] = defaultdict(list)
        for slot in slots:
            assert slot.pending is not None
            for policy_id, request in self._requester.requests(slot.pending):
                by_policy[policy_id].append(request)
                slot_of[request.request_id] = slot
        for policy_id, requests in by_policy.items():
            self._sample(policy_id, requests, slot_of)
        collection.generate_s += time.monotonic() - begun
        for slot in slots:
            collection.commit(slot)

    def _sample(self, policy_id: str, requests: list[GenerationRequest], slot_of: Mapping[str, Slot]) -> None:
        """Sample one batch; responses that the engine gave up are asked for again, with their own seed."""
        engine, sampling = self._engines[policy_id], sampling_of(self._sampling, policy_id)
        for _ in range(1 + self._retries):
            with RECORDER.span("generate", "generate", track=f"engine {policy_id}", requests=len(requests)):
                answers = {answer.request_id: answer for answer in engine.generate(requests, sampling)}
            for request in requests:
                slot_of[request.request_id].answers[request.request_id] = answers[request.request_id]
            requests = [request for request in requests if is_worth_a_retry(answers[request.request_id])]
            if not requests:
                break
