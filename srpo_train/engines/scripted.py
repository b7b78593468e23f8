"""An engine without a model: answers come from a script, for tests, examples and dry runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from srpo_envs.errors import EngineError
from srpo_train.engines.base import Generation, GenerationRequest, Sampling

Answer = Callable[[GenerationRequest], str | None]

EOS_ID = 256
"""The token after the last byte of a complete answer."""

_LOGPROB = -math.log(257)
"""Every token's log-probability: uniform over 256 bytes and the end."""


class ScriptedEngine:
    r"""Answers each request from a script, deterministically, with real token records.

    Tokens are the UTF-8 bytes of the answer, followed by `EOS_ID` when the answer is complete. Stop texts and token
    limits act as in a real engine, so a long answer is cut unless `respects_limits` is False.

    Example:
        ``ScriptedEngine("demo", {"Verify": "<verify>approve</verify>", "": "\\boxed{4}"})``

    Args:
        policy_id: The policy to answer for.
        answer: One of

            - a function from request to text; it may draw from the request's seed, return None to abort the request,
              or raise `EngineError`;
            - a mapping: the answer of the first key found in the prompt (the empty key is found in every prompt);
            - a sequence: answers in the order the requests arrive.
        policy_version: Written on every generation; assign it to play a weight publication.
        failing_calls: Numbers of the `generate` calls, from 0, that raise `EngineError`.
        delay_s: Seconds every call takes.
        respects_limits: Whether `max_new_tokens` cuts the answer.
    """

    def __init__(
        self,
        policy_id: str,
        answer: Answer | Mapping[str, str | None] | Sequence[str | None],
        *,
        policy_version: int = 0,
        failing_calls: Collection[int] = (),
        delay_s: float = 0.0,
        respects_limits: bool = True,
    ) -> None:
        self._policy_id = policy_id
        self._answer = answer if callable(answer) else _answer_from(policy_id, answer)
        self._failing_calls = frozenset(failing_calls)
        self._delay_s = delay_s
        self._respects_limits = respects_limits
        self.policy_version = policy_version
        self.num_calls = 0
        """Calls of `generate` so far, failed ones included."""
        self.requests: list[GenerationRequest] = []
        """Every request of the calls that did not fail, in order of arrival."""

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        return self._policy_id

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return the scripted answer of each request; `sampling` is ignored.

        Raises:
            EngineError: this call is one of the failing ones, or the script has no answer.
        """
        number = self.num_calls
        self.num_calls += 1
        if self._delay_s:
            time.sleep(self._delay_s)
        if number in self._failing_calls:
            raise EngineError(f"engine of policy {self._policy_id!r}: call {number} fails as scripted")
        self.requests.extend(requests)
        return [self._generation(request, self._answer(request)) for request in requests]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _generation(self, request: GenerationRequest, answer: str | None) -> Generation:
        limit = request.max_new_tokens if self._respects_limits else None
        token_ids, is_stopped = _tokens((answer or ""), request.stop, limit)
        aborted = answer is None
        return Generation(
            request_id=request.request_id,
            text=decode_bytes(token_ids) if not aborted else "",
            prompt_token_ids=tuple(request.prompt.encode()),
            token_ids=token_ids if not aborted else (),
            logprobs=(_LOGPROB,) * len(token_ids) if not aborted else (),
            finish_reason="abort" if aborted else "stop" if is_stopped else "length",
            policy_version=self.policy_version,
            abort_reason="aborted as scripted" if aborted else "",
            timings={"generate_s": self._delay_s},
        )


def decode_bytes(token_ids: Sequence[int]) -> str:
    """Return the text of scripted tokens; a character cut in two shows as U+FFFD."""
    return bytes(token for token in token_ids if token != EOS_ID).decode(errors="replace")


def _tokens(text: str, stops: Sequence[str], limit: int | None) -> tuple[tuple[int, ...], bool]:
    """Tokens of an answer, ended by its first stop text or else by `EOS_ID`; and whether the limit let it end."""
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    token_ids = tuple(text[: min(ends)].encode()) if ends else (*text.encode(), EOS_ID)
    if limit is None or len(token_ids) <= limit:
        return token_ids, True
    return token_ids[:limit], False


def _answer_from(policy_id: str, script: Mapping[str, str | None] | Sequence[str | None]) -> Answer:
    if isinstance(script, Mapping):
        return lambda request: _find(policy_id, script, request)
    remaining = iter(script)

    def next_answer(request: GenerationRequest) -> str | None:
        for answer in remaining:
            return answer
        raise EngineError(
            f"engine of policy {policy_id!r}: the script of {len(script)} answers is used up at request "
            f"{request.request_id!r}"
        )

    return next_answer


def _find(policy_id: str, script: Mapping[str, str | None], request: GenerationRequest) -> str | None:
    for key, answer in script.items():
        if key in request.prompt:
            return answer
    raise EngineError(
        f"engine of policy {policy_id!r}: no key of the script is in the prompt of request {request.request_id!r}; "
        "add an empty key as the default"
    )
