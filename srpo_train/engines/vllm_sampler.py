"""Log-probabilities of vLLM's samples under top-k and top-p: those of the whole distribution.

vLLM offers the log-probability before the temperature, or after temperature, top-k and top-p. The trainer recomputes
from the whole vocabulary at the sampling temperature, and that is what a `Generation` promises. The two agree unless
tokens are removed, so the change here is made when tokens are to be removed for the first time, not before.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def keep_whole_distribution(worker: Any) -> None:
    """Let a worker's sampler report log-probabilities as they are before top-k and top-p; runs in each worker."""
    sampler = worker.model_runner.sampler
    if hasattr(sampler, "topk_topp_sampler"):
        _wrap_module(sampler.topk_topp_sampler)
    else:
        _wrap_second_runner(sampler)


def _wrap_module(module: Any) -> None:
    """The sampler of vLLM's first model runner: (logits, generators, k, p) -> (tokens, log-probabilities)."""
    draw = module.forward

    def forward(logits: Tensor, generators: Any, k: Tensor | None, p: Tensor | None) -> tuple[Tensor, Tensor]:
        logprobs = logits.float().log_softmax(dim=-1)  # before: the logits are changed in place
        tokens, _ = draw(logits, generators, k, p)
        return tokens, logprobs

    module.forward = forward


def _wrap_second_runner(sampler: Any) -> None:
    """The sampler of vLLM's second model runner: (logits, ...) -> (tokens, logits behind the log-probabilities)."""
    draw = sampler._sample_random

    def sample(processed_logits: Tensor, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        whole = processed_logits.clone()
        tokens, _ = draw(processed_logits, *arguments, **named)
        return tokens, whole

    sampler._sample_random = sample
