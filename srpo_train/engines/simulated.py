"""An engine without a model that takes its time as one with continuous batching does, to study scheduling."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from srpo_envs.records import FinishReason
from srpo_train.engines.base import Generation, GenerationRequest, Sampling

_LOGPROB = -1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LogNormalLengths:
    """Response lengths with a heavy tail, decided by the request's seed.

    Example:
        ``LogNormalLengths(median=200, sigma=1.0)``: a tenth is longer than 720 tokens, one in a hundred than 2,050.
    """

    median: float
    """Tokens that half of the responses stay below."""
    sigma: float
    """Standard deviation of the logarithm; 0 makes all alike."""

    def __call__(self, request: GenerationRequest) -> int:
        """Return the number of tokens of a response, at least 1."""
        normal = np.random.default_rng(request.seed).standard_normal()
        return max(1, round(self.median * float(np.exp(self.sigma * normal))))


@dataclass(slots=True)
class Usage:
    """What an engine has done so far."""

    busy_s: float = 0.0
    """Seconds in decoding steps."""
    num_steps: int = 0
    """Decoding steps."""
    num_tokens: int = 0
    """Tokens of all steps: the rows of each, summed up."""


@dataclass(slots=True)
class _Row:
    request: GenerationRequest
    num_tokens: int
    generation: Generation
    arrived: float
    seated: float = 0.0

    def finished(self) -> Generation:
        """The generation, with the time it took."""
        timings = {"generate_s": time.perf_counter() - self.seated, "queue_s": self.seated - self.arrived}
        return dataclasses.replace(self.generation, timings=timings)


class SimulatedEngine:
    """Says what a script says, and takes real time for it, one decoding step of all running rows after the other.

    A step lasts ``step_s + step_s_per_row * rows``. Requests join between steps, in order of arrival, as long as there
    are seats, and leave with their last token. Responses depend on request and seed only.

    Args:
        policy_id: The policy to answer for.
        answer: Text of the response; None gives the request up.
        num_tokens: How long the response is; cut at the request's limit, its text likewise.
        max_batch_size: Rows that are decoded together; the others wait.
        step_s: Seconds of a step whatever its rows.
        step_s_per_row: Seconds that every row adds.
    """

    def __init__(
        self,
        policy_id: str,
        answer: Callable[[GenerationRequest], str | None],
        num_tokens: Callable[[GenerationRequest], int],
        *,
        max_batch_size: int = 64,
        step_s: float = 1e-3,
        step_s_per_row: float = 1e-5,
    ) -> None:
        self._policy_id = policy_id
        self._answer = answer
        self._num_tokens = num_tokens
        self._max_batch_size = max_batch_size
        self._step_s = step_s
        self._step_s_per_row = step_s_per_row
        self._arrivals = itertools.count()
        self._waiting: deque[_Row] = deque()
        self._rows: list[tuple[int, int, _Row]] = []  # a heap by (last step, arrival)
        self._done: list[Generation] = []
        self.usage = Usage()
        """Assign a new one to count from here."""
        self._step = 0

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._policy_id

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order, when the last one is finished."""
        self.submit(requests, sampling)
        wanted = {request.request_id for request in requests}
        answers: dict[str, Generation] = {}
        while len(answers) < len(wanted):
            self._decode()
            answers.update((done.request_id, done) for done in self._done if done.request_id in wanted)
            self._done = [done for done in self._done if done.request_id not in wanted]
        return [answers[request.request_id] for request in requests]

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Queue requests; `sampling` is ignored."""
        self._waiting.extend(self._row(request) for request in requests)

    def poll(self, timeout_s: float) -> list[Generation]:
        """Make one decoding step if there is a request, however long it takes, and return what is finished."""
        if not self._done and (self._waiting or self._rows):
            self._decode()
        done, self._done = self._done, []
        return done

    def cancel(self, request_ids: Collection[str]) -> None:
        """Forget requests; their seats are free at the next step."""
        given_up = set(request_ids)
        self._waiting = deque(row for row in self._waiting if row.request.request_id not in given_up)
        self._rows = [item for item in self._rows if item[2].request.request_id not in given_up]
        heapq.heapify(self._rows)
        self._done = [done for done in self._done if done.request_id not in given_up]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _decode(self) -> None:
        """One step: seats are taken, time passes, and rows at their last token leave."""
        while self._waiting and len(self._rows) < self._max_batch_size:
            row = self._waiting.popleft()
            row.seated = time.perf_counter()
            heapq.heappush(self._rows, (self._step + row.num_tokens, next(self._arrivals), row))
        begun = time.perf_counter()
        time.sleep(self._step_s + self._step_s_per_row * len(self._rows))
        self._step += 1
        self.usage.busy_s += time.perf_counter() - begun
        self.usage.num_steps += 1
        self.usage.num_tokens += len(self._rows)
        while self._rows and self._rows[0][0] <= self._step:
            self._done.append(heapq.heappop(self._rows)[2].finished())

    def _row(self, request: GenerationRequest) -> _Row:
        text = self._answer(request)
        wanted = self._num_tokens(request)
        length = min(wanted, request.max_new_tokens)
        if text is None:
            generation = self._generation(request, "", 0, "abort")
        elif length < wanted:
            generation = self._generation(request, text[: len(text) * length // wanted], length, "length")
        else:
            generation = self._generation(request, text, length, "stop")
        return _Row(request, length, generation, time.perf_counter())

    def _generation(self, request: GenerationRequest, text: str, num_tokens: int, reason: FinishReason) -> Generation:
        return Generation(
            request_id=request.request_id,
            text=text,
            prompt_token_ids=tuple(request.prompt.encode()),
            token_ids=(0,) * num_tokens,
            logprobs=(_LOGPROB,) * num_tokens,
            finish_reason=reason,
            abort_reason="given up as simulated" if reason == "abort" else "",
        )
