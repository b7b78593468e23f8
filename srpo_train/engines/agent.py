"""An engine whose answers come from anyone's own code: a function, a graph of calls, a program with tools."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from srpo_envs.errors import ConfigError, SurroundingsError
from srpo_envs.records import Member
from srpo_train.engines.base import MOST_UNSEEN_TOKENS, Generation, GenerationRequest, Sampling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentReply:
    r"""An answer that says what it cost.

    Example:
        ``AgentReply(text="\\boxed{4}", num_tokens=120)``
    """

    text: str
    """What the environment reads."""
    num_tokens: int = 0
    """Tokens that were sampled on the way, thoughts and tool calls included. An environment whose budget limits tokens
    needs them, at most `Member.max_new_tokens`: an answer that took more is wrong."""


Agent = Callable[[Member], str | AgentReply]
"""Answers for a member: its prompt is all there is to know, its role and limits stand beside it."""


class AgentEngine:
    """Lets an agent play members; for evaluation, since there are no tokens to train on.

    Each answer is a call of the agent on a thread of its own, several at once. An agent that raises, or returns
    something that is not an answer, has failed its task: the episode counts as wrong. One that raises a
    `SurroundingsError` says that something else failed, such as the service it needs: it is asked again, and in the end
    the episode is left out and counted.

    Args:
        policy_id: Name of the agent in records.
        agent: Called with a `Member`; must allow calls from several threads.
        max_concurrent: Calls that may run at once.
        timeout_s: An answer that takes longer counts as failed; its thread is left behind.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(self, policy_id: str, agent: Agent, *, max_concurrent: int = 8, timeout_s: float = 600.0) -> None:
        if max_concurrent < 1 or not timeout_s > 0:
            raise ConfigError(
                f"agent {policy_id!r}: expected max_concurrent of at least 1 and timeout_s above 0, "
                f"got {max_concurrent} and {timeout_s}"
            )
        self._policy_id = policy_id
        self._agent = agent
        self._timeout_s = timeout_s
        self._max_concurrent = max_concurrent

    @property
    def policy_id(self) -> str:
        """Name of the agent in records."""
        return self._policy_id

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return the agent's answer to each request, in request order; how it draws tokens is its own affair.

        Raises:
            ConfigError: a request does not say who is asked.
        """
        calls = _Calls(self._agent, [_member_of(request) for request in requests], self._timeout_s)
        outcomes = calls.run(self._max_concurrent)
        return [self._generation(request, outcome) for request, outcome in zip(requests, outcomes, strict=True)]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _generation(self, request: GenerationRequest, outcome: _Outcome) -> Generation:
        reply, trouble = _read(outcome.value), outcome.error
        if reply is None and trouble is None:
            trouble = TypeError(f"expected a text or an AgentReply of a text and a count, got {_told(outcome.value)}")
        reason = "" if trouble is None else f"agent {self._policy_id!r}: {type(trouble).__name__}: {trouble}"
        if reason:
            logger.warning("request %s: %s", request.request_id, reason, exc_info=trouble)
        return Generation(
            request_id=request.request_id,
            text=reply.text if reply else "",
            prompt_token_ids=(),
            token_ids=(),
            logprobs=(),
            finish_reason="abort" if reason else "stop",
            abort_reason=reason,
            is_hopeless=bool(reason) and not isinstance(trouble, SurroundingsError),
            num_unseen_tokens=reply.num_tokens if reply else 0,
            timings={"generate_s": outcome.duration_s, "queue_s": outcome.waited_s},
        )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How one call ended."""

    value: object = None
    error: BaseException | None = None
    duration_s: float = 0.0
    waited_s: float = 0.0


class _Calls:
    """The calls of one batch, each on a daemon thread, so that one which hangs can be left behind."""

    def __init__(self, agent: Agent, members: Sequence[Member], timeout_s: float) -> None:
        self._agent = agent
        self._members = members
        self._timeout_s = timeout_s
        self._deadlines: dict[int, float] = {}
        self._finished: queue.SimpleQueue[tuple[int, _Outcome]] = queue.SimpleQueue()
        self._outcomes: dict[int, _Outcome] = {}
        self._asked = time.monotonic()

    def run(self, max_concurrent: int) -> list[_Outcome]:
        """Make all calls and return how they ended, in order."""
        waiting = deque(range(len(self._members)))
        while waiting or self._deadlines:
            while waiting and len(self._deadlines) < max_concurrent:
                self._start(waiting.popleft())
            self._wait()
        return [self._outcomes[number] for number in range(len(self._members))]

    def _start(self, number: int) -> None:
        self._deadlines[number] = time.monotonic() + self._timeout_s
        threading.Thread(target=self._call, args=(number,), name=f"srpo-agent-{number}", daemon=True).start()

    def _call(self, number: int) -> None:
        begun = time.monotonic()
        try:
            outcome = _Outcome(value=self._agent(self._members[number]))
        except BaseException as error:  # the boundary to code that is not ours: even sys.exit is the agent's failure
            outcome = _Outcome(error=error)
        timed = dataclasses.replace(outcome, duration_s=time.monotonic() - begun, waited_s=begun - self._asked)
        self._finished.put((number, timed))

    def _wait(self) -> None:
        """Take the next call that ends, or give up those that take too long."""
        try:
            number, outcome = self._finished.get(timeout=max(min(self._deadlines.values()) - time.monotonic(), 0.0))
        except queue.Empty:
            now = time.monotonic()
            for number in [number for number, deadline in self._deadlines.items() if deadline <= now]:
                del self._deadlines[number]
                error = TimeoutError(f"no answer within {self._timeout_s:g} s")
                self._outcomes[number] = _Outcome(error=error, duration_s=self._timeout_s)
        else:
            if self._deadlines.pop(number, None) is not None:  # else it comes after it was given up
                self._outcomes[number] = outcome


def _member_of(request: GenerationRequest) -> Member:
    if request.member is None:
        raise ConfigError(f"request {request.request_id!r} does not say which member is asked; an agent needs to know")
    return request.member


def _read(value: object) -> AgentReply | None:
    """The answer; None where it is none, or says a number of tokens that cannot be."""
    if isinstance(value, str):
        return AgentReply(text=value)
    if not isinstance(value, AgentReply) or not isinstance(value.text, str):
        return None
    is_count = isinstance(value.num_tokens, int) and 0 <= value.num_tokens <= MOST_UNSEEN_TOKENS
    return value if is_count else None


def _told(value: object) -> str:
    """What an agent returned, in the same words each time: an object's own words often hold its address."""
    return f"{value!r:.80}" if isinstance(value, AgentReply) else type(value).__name__
