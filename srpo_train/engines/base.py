"""The contract between the collector and whatever generates text: requests in, generations out, in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from srpo_envs.errors import ConfigError
from srpo_envs.records import FinishReason, Member
from srpo_train.engines.kept import MOST_KEPT


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is drawn; the defaults sample from the policy itself, as training needs."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability."""
    top_k: int = 0
    """Keep this many tokens; 0 keeps all. Applied before top-p, which then counts what is left as 1."""
    with_kept: bool = False
    """Also return, for each token, those that top-k and top-p left, as training needs. It takes a `top_k`."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing.

        Raises:
            ConfigError: a value is out of range.
        """
        if not self.temperature >= 0:
            raise ConfigError(f"sampling: temperature must be at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"sampling: top_p must be above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise ConfigError(f"sampling: top_k must be at least 0 (0 keeps all), got {self.top_k}")
        if self.with_kept and not 0 < self.top_k <= MOST_KEPT:
            raise ConfigError(
                f"sampling: with_kept takes a top_k from 1 to {MOST_KEPT}, which bounds what is returned for each "
                f"token, got {self.top_k}"
            )

    @property
    def is_truncated(self) -> bool:
        """Whether some tokens are removed before drawing."""
        return self.top_p < 1 or self.top_k > 0


def sampling_of(sampling: Sampling | Mapping[str, Sampling], policy_id: str) -> Sampling:
    """Return how one policy draws its tokens, from what all do or what each does."""
    return sampling if isinstance(sampling, Sampling) else sampling[policy_id]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One response to sample."""

    request_id: str
    """Names the request in errors and logs: event id and member index."""
    prompt: str
    """The member's prompt as text; the policy's chat template turns it into tokens."""
    max_new_tokens: int
    """Most tokens to sample, end-of-sequence included."""
    seed: int
    """Decides this response's random numbers, whatever else is in the batch."""
    stop: tuple[str, ...] = ()
    """Texts after which generation ends; the stop text and its tokens stay in the response."""
    member: Member | None = None
    """Whose answer this is, for agents that are more than a model; a model sees the prompt alone."""

    def __post_init__(self) -> None:
        """Refuse a request that no response can satisfy.

        Raises:
            ConfigError: there is nothing to sample, or a stop text is empty.
        """
        if self.max_new_tokens < 1:
            raise ConfigError(
                f"request {self.request_id!r}: max_new_tokens must be at least 1, got {self.max_new_tokens}"
            )
        if "" in self.stop:
            raise ConfigError(f"request {self.request_id!r}: an empty stop text would end every response at once")


MOST_UNSEEN_TOKENS = 10_000_000
"""More than any answer takes; a count beyond it is a mistake or a lie, and records hold a number for each token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One sampled response with exactly the tokens that were sampled."""

    request_id: str
    """The request's."""
    text: str
    """Decoded response without special tokens."""
    prompt_token_ids: tuple[int, ...]
    """The prompt as the policy saw it."""
    token_ids: tuple[int, ...]
    """Sampled tokens, end-of-sequence included when it was sampled; empty where an engine knows texts only."""
    logprobs: tuple[float, ...]
    """Natural-log probability of each sampled token in the distribution that it was drawn from: the policy's at the
    sampling temperature, within what top-k and top-p left; at temperature 0, the policy's at temperature 1."""
    finish_reason: FinishReason
    """``stop``, ``length`` or ``abort``."""
    kept_token_ids: tuple[tuple[int, ...], ...] = ()
    """For each sampled token those that top-k and top-p left, itself among them, in ascending order; empty where
    nothing was removed or nobody asked."""
    policy_version: int = 0
    """Version of the weights that sampled it."""
    abort_reason: str = ""
    """Why the engine gave this request up; empty unless ``finish_reason`` is ``abort``."""
    is_hopeless: bool = False
    """An aborted request that would be given up again, such as a prompt longer than the context: do not retry it."""
    num_unseen_tokens: int = 0
    """Sampled tokens that an endpoint counts without saying which; they cost, and nothing can be trained on them."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name: ``generate_s`` from when the engine took the request up until its end, and ``queue_s``
    of waiting before that; an engine that cannot tell them apart has the sum of both in ``generate_s``."""

    @property
    def num_tokens(self) -> int:
        """Sampled tokens, seen or not."""
        return len(self.token_ids) + self.num_unseen_tokens


class Engine(Protocol):
    """Samples responses of one policy."""

    @property
    def policy_id(self) -> str:
        """The policy this engine answers for."""
        ...

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Return one generation per request, in request order.

        A response depends on its request, its seed and the weights, not on its neighbours (up to floating-point noise
        of another batch shape).

        Raises:
            EngineError: the engine failed as a whole; a single failing request comes back as ``abort``.
        """
        ...

    def close(self) -> None:
        """Release what the engine holds; safe to call more than once."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine whose responses come one by one, as they are finished.

    `submit`, `poll` and `cancel` are called from one thread.
    """

    def submit(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> None:
        """Begin to answer requests, whose ids differ from those under way; return at once.

        Raises:
            EngineError: the engine failed as a whole; it has forgotten all requests.
        """
        ...

    def poll(self, timeout_s: float) -> list[Generation]:
        """Return what has been finished since the last poll, in any order.

        When nothing is ready it works (in process: at least one decoding step if there is a request) or waits (served)
        for at most `timeout_s`. With no request under way it returns once the engine is at rest: nothing of a request
        that was cancelled before comes after that, so that ids may be used again and weights be changed.

        Raises:
            EngineError: the engine failed as a whole; it has forgotten all requests.
        """
        ...

    def cancel(self, request_ids: Collection[str]) -> None:
        """Give requests up; they come back as aborted or not at all. Ids that are not under way are ignored."""
        ...
