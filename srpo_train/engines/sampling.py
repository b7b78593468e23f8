"""Drawing the next token: filters, inverse-CDF sampling, and the uniforms each request brings along."""

from __future__ import annotations

from typing import NamedTuple

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


class Draw(NamedTuple):
    """One token for each row."""

    tokens_R: Tensor
    """[R] int64."""
    logprobs_R: Tensor
    """[R] float32, NaN where the logits of a row are not usable."""
    kept: list[list[int]] | None
    """For each row the tokens that were left to draw from, ascending; None where nothing was removed or not asked."""


def draw(logits_RV: Tensor, uniforms_R: Tensor, sampling: Sampling) -> Draw:
    """Draw one token per row.

    With p = softmax(logits / temperature) and S what top-k and then top-p leave, a token y of S is drawn with
    probability p_y / sum of p over S, whose logarithm is returned. At temperature 0 the most likely token is taken and
    its log-probability is log p at temperature 1.

    Args:
        logits_RV: [R, V] any float type, one row per response.
        uniforms_R: [R] float64 in [0, 1); not read at temperature 0.
        sampling: Temperature and filters.
    """
    step = max(1, MAX_ELEMENTS // logits_RV.shape[-1])
    parts = [
        _draw(logits, uniforms, sampling)
        for logits, uniforms in zip(torch.split(logits_RV, step), torch.split(uniforms_R, step), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return Draw(
        torch.cat([part.tokens_R for part in parts]),
        torch.cat([part.logprobs_R for part in parts]),
        None if parts[0].kept is None else [row for part in parts for row in part.kept or ()],
    )


def _draw(logits_RV: Tensor, uniforms_R: Tensor, sampling: Sampling) -> Draw:
    scaled_RV = logits_RV.float()
    if sampling.temperature not in (0.0, 1.0):
        scaled_RV = scaled_RV / sampling.temperature
    logprobs_RV = scaled_RV.log_softmax(dim=-1)
    if sampling.temperature == 0:
        tokens_R = scaled_RV.argmax(dim=-1)
        return Draw(tokens_R, _at(logprobs_RV, tokens_R), None)
    if not sampling.is_truncated:
        tokens_R = inverse_cdf(logprobs_RV.exp(), uniforms_R)
        return Draw(tokens_R, _at(logprobs_RV, tokens_R), None)
    weights_RV = _filtered(logprobs_RV.exp(), sampling)
    tokens_R = inverse_cdf(weights_RV, uniforms_R)
    logmass_R = weights_RV.double().sum(dim=-1).log().float()
    kept = [row.nonzero()[:, 0].tolist() for row in weights_RV.cpu()] if sampling.with_kept else None
    return Draw(tokens_R, _at(logprobs_RV, tokens_R) - logmass_R, kept)


def _at(values_RV: Tensor, tokens_R: Tensor) -> Tensor:
    return values_RV.gather(-1, tokens_R[:, None])[:, 0]


def _filtered(probs_RV: Tensor, sampling: Sampling) -> Tensor:
    """Return probabilities with those outside top-k and then top-p set to 0, not normalised again."""
    top_k = min(sampling.top_k or probs_RV.shape[-1], probs_RV.shape[-1])
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
