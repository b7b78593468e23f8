"""The contract between the collector and whatever generates text: requests in, generations out, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from srpo_envs.records import FinishReason


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is drawn; the defaults sample from the policy itself, as training needs."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability."""
    top_k: int = 0
    """Keep this many tokens; 0 keeps all."""


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
    """Sampled tokens, end-of-sequence included when it was sampled."""
    logprobs: tuple[float, ...]
    """Natural-log probability of each sampled token under the sampling distribution's policy at the sampling
    temperature, before top-p and top-k."""
    finish_reason: FinishReason
    """``stop``, ``length`` or ``abort``."""
    policy_version: int = 0
    """Version of the weights that sampled it."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name."""


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
