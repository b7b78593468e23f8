"""Drawing the next token: filters, inverse-CDF sampling, and the uniforms each request brings along."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from srpo_train.engines.base import Sampling

MAX_ELEMENTS = 1 << 24
"""Most logits handled at once: the float64 sums of a 150,000-token vocabulary would need 0.3 GB at batch 256."""


def request_uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """Return the uniforms in [0, 1) that decide a response: number u draws its token u.

    They depend on the seed alone, so neither the batch nor the response's limit changes a draw: a smaller `count`
    gives a prefix. Any integer is a seed.
    """
    words = [abs(seed), 1] if seed < 0 else [seed]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words))).random(count)


def draw(logits_RV: Tensor, uniforms_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw one token per row and its log-probability.

    With p = softmax(logits / temperature) the log-probability is log p of the token, whatever top-k and top-p remove:
    the trainer recomputes it from the whole vocabulary. At temperature 0 the most likely token is taken and its
    log-probability is that of temperature 1.

    Args:
        logits_RV: [R, V] any float type, one row per response.
        uniforms_R: [R] float64 in [0, 1); not read at temperature 0.
        sampling: Temperature and filters.

    Returns:
        [R] int64 tokens and [R] float32 log-probabilities (NaN where the logits of a row are not usable).
    """
    step = max(1, MAX_ELEMENTS // logits_RV.shape[-1])
    parts = [
        _draw(logits, uniforms, sampling)
        for logits, uniforms in zip(torch.split(logits_RV, step), torch.split(uniforms_R, step), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([logprobs for _, logprobs in parts])


def _draw(logits_RV: Tensor, uniforms_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    scaled_RV = logits_RV.float()
    if sampling.temperature not in (0.0, 1.0):
        scaled_RV = scaled_RV / sampling.temperature
    logprobs_RV = scaled_RV.log_softmax(dim=-1)
    if sampling.temperature == 0:
        tokens_R = scaled_RV.argmax(dim=-1)
    else:
        tokens_R = inverse_cdf(_filtered(logprobs_RV.exp(), sampling), uniforms_R)
    return tokens_R, logprobs_RV.gather(-1, tokens_R[:, None])[:, 0]


def _filtered(probs_RV: Tensor, sampling: Sampling) -> Tensor:
    """Return probabilities with those outside top-k and then top-p set to 0, not normalised again."""
    vocabulary = probs_RV.shape[-1]
    top_k = min(sampling.top_k or vocabulary, vocabulary)
    if top_k == vocabulary and sampling.top_p >= 1:
        return probs_RV
    # Stable, so that equal probabilities are kept in token order on every device.
    ranked_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
    ranked_RV[:, top_k:] = 0
    mass_RV = ranked_RV.double().cumsum(dim=-1)
    # A token stays while the mass before it is below top-p of what top-k left; the first one always stays.
    before_RV = mass_RV - ranked_RV
    ranked_RV[before_RV >= sampling.top_p * mass_RV[:, -1:]] = 0
    return torch.zeros_like(probs_RV).scatter(-1, order_RV, ranked_RV)


def inverse_cdf(weights_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    """Return the first token whose cumulative weight exceeds u times the total, for each row.

    The sums are float64: in float32 the tail of a large vocabulary is lost. A token of weight 0 is never returned: its
    cumulative weight equals its predecessor's, so it cannot be the first to exceed anything.

    Args:
        weights_RV: [R, V] non-negative, not necessarily normalised.
        uniforms_R: [R] float64 in [0, 1).

    Returns:
        [R] int64 token ids.
    """
    cumulative_RV = weights_RV.double().cumsum(dim=-1)
    thresholds_R1 = (uniforms_R * cumulative_RV[:, -1])[:, None]
    tokens_R = torch.searchsorted(cumulative_RV, thresholds_R1, right=True)[:, 0].clamp(max=weights_RV.shape[-1] - 1)
    # Parallel prefix sums on an accelerator need not be monotone in the last bit; this keeps the promise there too.
    impossible_R = weights_RV.gather(-1, tokens_R[:, None])[:, 0] == 0
    return torch.where(impossible_R, weights_RV.argmax(dim=-1), tokens_R) if impossible_R.any() else tokens_R
