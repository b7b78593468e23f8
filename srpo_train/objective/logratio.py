"""From token log-probabilities to one log-ratio per event (SRPO eq. 3 to 5).

Letters: E events, M member rows (the sum of all cardinalities), T padded response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, IncompleteEventError, ShapeError

Scaling = Literal["sqrt", "none", "mean"]


def member_log_ratio(
    current_MT: Tensor, old_MT: Tensor, token_mask_MT: Tensor, *, length_normalized: bool = False
) -> Tensor:
    """Masked sum of ``log q_cur - log q_old`` over one member's tokens (SRPO eq. 3).

    Positions outside the mask are selected away, never multiplied by zero, so NaN or infinity in padding cannot leak.

    Args:
        current_MT: [M, T] log-probabilities under the policy being updated.
        old_MT: [M, T] log-probabilities under the behavior policy; no gradient flows into it.
        token_mask_MT: [M, T], true on sampled tokens; false on prompt, padding and environment text.
        length_normalized: divide by the number of sampled tokens, the GSPO ratio (not part of eq. 3).

    Returns:
        [M] at least float32. A row without sampled tokens gives 0.

    Raises:
        ShapeError: the three tensors differ in shape or are not matrices.
    """
    if current_MT.dim() != 2 or not current_MT.shape == old_MT.shape == token_mask_MT.shape:
        shapes = [list(tensor.shape) for tensor in (current_MT, old_MT, token_mask_MT)]
        raise ShapeError(f"member log-ratio: expected three [M, T] tensors of one shape, got {shapes}; pad them alike")
    mask_MT = token_mask_MT.bool()
    log_ratio_M = masked_difference(current_MT, old_MT.detach(), mask_MT).sum(dim=1)
    if length_normalized:
        log_ratio_M = log_ratio_M / mask_MT.sum(dim=1).clamp(min=1)
    return log_ratio_M


def masked_difference(minuend_MT: Tensor, subtrahend_MT: Tensor, mask_MT: Tensor) -> Tensor:
    """Return the [M, T] difference in at least float32, exactly 0 (value and gradient) outside the mask."""
    dtype = torch.promote_types(minuend_MT.dtype, torch.float32)
    return minuend_MT.to(dtype).masked_fill(~mask_MT, 0.0) - subtrahend_MT.to(dtype).masked_fill(~mask_MT, 0.0)


def set_log_ratio(
    log_ratio_M: Tensor,
    event_of_row_M: Tensor,
    cardinality_E: Tensor,
    *,
    scaling: Scaling = "sqrt",
    event_ids: Sequence[str] | None = None,
) -> Tensor:
    """Cardinality-normalised log-ratio, ``L_e = K_e^(-1/2) * sum_j l_ej`` (SRPO eq. 4).

    Args:
        log_ratio_M: [M] one summed log-ratio per member row.
        event_of_row_M: [M] int64 in [0, E), the event each row belongs to.
        cardinality_E: [E] int64, members each event was announced with.
        scaling: ``sqrt`` divides the sum by sqrt(K), ``mean`` by K, ``none`` leaves the joint log-ratio.
        event_ids: E names used in the error message; indices when absent.

    Returns:
        [E] in the type of the input; with K_e = 1 it is the member's own log-ratio.

    Raises:
        IncompleteEventError: an event has more or fewer rows than its cardinality.
    """
    require_complete(event_of_row_M, cardinality_E, event_ids=event_ids)
    sum_E = sum_members(log_ratio_M, event_of_row_M, cardinality_E.numel())
    return sum_E / scaling_divisor(cardinality_E, scaling).to(sum_E)


def sum_members(value_M: Tensor, event_of_row_M: Tensor, num_events: int) -> Tensor:
    """Sum member values per event: [M] to [E]."""
    return value_M.new_zeros(num_events).index_add(0, event_of_row_M, value_M)


def scaling_divisor(cardinality_E: Tensor, scaling: Scaling) -> Tensor:
    """Return what the sum of member log-ratios is divided by: sqrt(K), 1 or K, as [E] float64."""
    cardinality_E = cardinality_E.to(torch.float64)
    if scaling == "sqrt":
        return cardinality_E.sqrt()
    if scaling == "mean":
        return cardinality_E
    if scaling == "none":
        return torch.ones_like(cardinality_E)
    raise ConfigError(f"scaling: expected one of {get_args(Scaling)}, got {scaling!r}")


def require_complete(event_of_row_M: Tensor, cardinality_E: Tensor, *, event_ids: Sequence[str] | None = None) -> None:
    """Check that every event has exactly as many rows as announced, and at least one.

    Raises:
        IncompleteEventError: names the first event whose rows are lost or extra, or whose cardinality is below one.
    """
    num_events = cardinality_E.numel()
    if event_of_row_M.numel() and not 0 <= int(event_of_row_M.min()) <= int(event_of_row_M.max()) < num_events:
        raise IncompleteEventError(f"event_of_row_M: expected indices in [0, {num_events}), got one outside")
    rows_E = torch.bincount(event_of_row_M, minlength=num_events)
    wrong = ((rows_E != cardinality_E) | (cardinality_E < 1)).nonzero()
    if wrong.numel():
        index = int(wrong[0])
        name = event_ids[index] if event_ids is not None else f"#{index}"
        raise IncompleteEventError(
            f"event {name!r}: expected {int(cardinality_E[index])} members (at least 1), got {int(rows_E[index])}; "
            "drop incomplete events before training"
        )


@dataclass(frozen=True, kw_only=True)
class VarianceSplit:
    """Empirical eq. 5 for the events of one cardinality.

    Example:
        With ``sqrt`` scaling, ``variance == member_variance + covariance_part`` up to rounding.
    """

    cardinality: int
    """K, the number of members of these events."""
    num_events: int
    """Events the estimate rests on."""
    variance: float
    """Population variance of L over these events."""
    member_variance: float
    """What the variance of L would be with uncorrelated members."""
    covariance_part: float
    """The rest: the contribution of correlation between members of one event."""


def variance_split(
    log_ratio_M: Tensor, event_of_row_M: Tensor, cardinality_E: Tensor, *, scaling: Scaling = "sqrt"
) -> list[VarianceSplit]:
    """Split the variance of L per cardinality into its member and covariance parts (SRPO eq. 5).

    Deviations are taken from the mean member log-ratio of all events of that cardinality, and all moments divide by the
    number of events. With these choices the split is an identity on the sample, not only in expectation, and does not
    depend on the order of members.

    Args:
        log_ratio_M: [M] member log-ratios.
        event_of_row_M: [M] int64, the event of each row.
        cardinality_E: [E] int64.
        scaling: as in `set_log_ratio`.

    Returns:
        One split per cardinality present, by rising K.
    """
    require_complete(event_of_row_M, cardinality_E)
    value_M = log_ratio_M.detach().to(torch.float64)
    cardinality_M = cardinality_E[event_of_row_M]
    divisor_E = scaling_divisor(cardinality_E, scaling)
    return [
        _split_one(int(cardinality), value_M, cardinality_M, event_of_row_M, cardinality_E, divisor_E)
        for cardinality in torch.unique(cardinality_E)
    ]


def _split_one(
    cardinality: int,
    value_M: Tensor,
    cardinality_M: Tensor,
    event_of_row_M: Tensor,
    cardinality_E: Tensor,
    divisor_E: Tensor,
) -> VarianceSplit:
    rows_M, events_E = cardinality_M == cardinality, cardinality_E == cardinality
    deviation_M = torch.where(rows_M, value_M - value_M[rows_M].mean(), 0.0)
    scale = 1.0 / float(divisor_E[events_E][0]) ** 2
    sum_E = sum_members(deviation_M, event_of_row_M, cardinality_E.numel())[events_E]
    num_events = sum_E.numel()
    variance = scale * float(sum_E.square().sum()) / num_events
    member_variance = scale * float(deviation_M.square().sum()) / num_events
    return VarianceSplit(
        cardinality=cardinality,
        num_events=num_events,
        variance=variance,
        member_variance=member_variance,
        covariance_part=variance - member_variance,
    )
