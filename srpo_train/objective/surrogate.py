"""The clipped surrogate, the reduction to one number, and the divergence and entropy terms (SRPO eq. 7).

``min(rho A, clip(rho) A)`` is ``A * clamp(rho, lower, upper)`` with bounds that depend on the sign of A. The code is
written in that form: one place holds the bounds, and the gradient gate, the dual clip and the clip fraction follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, ShapeError
from srpo_train.objective.logratio import (
    masked_difference,
    member_log_ratio,
    require_complete,
    set_log_ratio,
    sum_members,
)
from srpo_train.objective.spec import KlEstimator, Objective, Reduction

# exp overflows float32 near 88 and would turn a gated gradient into 0 * inf = NaN. Beyond this log-ratio (a ratio of
# 5e8) the ratio is constant: far outside every clip range, and finite.
MAX_LOG_RATIO = 20.0


class Clip(NamedTuple):
    """Bounds of the ratio: one for all units, or one for each."""

    lower: float | Tensor
    """1 - clip_low, for negative advantages."""
    upper: float | Tensor
    """1 + clip_high, for positive advantages."""
    dual: float | Tensor
    """Upper bound for negative advantages; infinite without a dual clip."""

    @classmethod
    def of(cls, objective: Objective) -> Clip:
        """Return the bounds an objective names."""
        dual = math.inf if objective.dual_clip is None else objective.dual_clip
        return cls(1.0 - objective.clip_low, 1.0 + objective.clip_high, dual)

    @classmethod
    def stack(cls, clips: Sequence[Clip]) -> Clip:
        """Return one set of bounds per event as [E] float64."""
        return cls(*torch.tensor(clips, dtype=torch.float64).unbind(dim=1))

    def at(self, index: Tensor) -> Clip:
        """Gather the bounds of units from those of their events."""
        return Clip(*(torch.as_tensor(bound)[index] for bound in self))


@dataclass(frozen=True, kw_only=True)
class LossTensors:
    """Everything the objective of one mini-batch is a function of.

    Example:
        One event of two members with two tokens each: ``current_MT`` is [2, 2], ``event_of_row_M`` is ``[0, 0]``,
        ``cardinality_E`` is ``[2]`` and ``advantage_E`` is ``[1.0]``.
    """

    current_MT: Tensor
    """[M, T] log-probabilities under the policy being updated."""
    old_MT: Tensor
    """[M, T] log-probabilities under the behavior policy, recomputed by the trainer."""
    token_mask_MT: Tensor
    """[M, T] true on sampled tokens."""
    event_of_row_M: Tensor
    """[M] int64, the event of each row."""
    cardinality_E: Tensor
    """[E] int64, announced members."""
    advantage_E: Tensor
    """[E] one advantage per event; used by the ``set`` unit."""
    advantage_M: Tensor | None = None
    """[M] advantages of the ``sequence`` and ``token`` units where rows differ; else the event's."""
    reference_MT: Tensor | None = None
    """[M, T] log-probabilities under the reference policy; needed when ``kl_coef`` is positive."""
    entropy_MT: Tensor | None = None
    """[M, T] entropies under the policy being updated; needed when ``entropy_coef`` is not zero."""
    engine_MT: Tensor | None = None
    """[M, T] log-probabilities under the engine that sampled; needed when there is a ``correction``."""
    clip_E: Clip | None = None
    """[E] bounds of the ratio, where events do not all have the objective's."""
    event_ids: Sequence[str] | None = None
    """E names for error messages."""


class Totals(NamedTuple):
    """Counts of the whole mini-batch, over all micro-batches and ranks. They divide the sums; local counts never do."""

    num_events: int
    """Events, those with zero advantage included."""
    num_rows: int
    """Member rows."""
    num_tokens: int
    """Sampled tokens."""


class Units(NamedTuple):
    """The U units of an objective: sets, rows or sampled tokens."""

    log_ratio: Tensor
    """[U] log of the ratio each unit is clipped by."""
    advantage: Tensor
    """[U] float."""
    weight: Tensor
    """[U] share in the mean; over the whole mini-batch they sum to 1."""
    clip: Clip | None = None
    """[U] bounds of the ratio, where they are not the objective's."""


def clip_bounds(advantage: Tensor, objective: Objective, clip: Clip | None = None) -> tuple[Tensor, Tensor]:
    """Bounds between which eq. 7 lets the ratio act, by the sign of the advantage.

    Positive advantage: (0, 1 + clip_high). Negative: (1 - clip_low, dual_clip or infinity).

    Returns:
        lower and upper, shaped like ``advantage``.
    """
    clip = clip or Clip.of(objective)
    infinity = torch.full_like(advantage, torch.inf)
    lower = torch.where(advantage < 0, clip.lower, torch.zeros_like(advantage))
    upper = torch.where(advantage > 0, clip.upper, torch.where(advantage < 0, clip.dual, infinity))
    return lower, upper


def surrogate(log_ratio: Tensor, advantage: Tensor, objective: Objective, clip: Clip | None = None) -> Tensor:
    """Elementwise surrogate: eq. 7's minimum, or advantage times log-ratio for the ``linear`` form.

    Args:
        log_ratio: [U] log-ratios.
        advantage: [U] advantages; no gradient flows into them.
        objective: gives form, clip range and dual clip.
        clip: bounds of the ratio, where they are not the objective's.

    Returns:
        [U] values to be maximised.
    """
    advantage = advantage.detach().to(log_ratio.dtype)
    if objective.form == "linear":
        return advantage * log_ratio
    lower, upper = clip_bounds(advantage, objective, clip)
    return advantage * torch.clamp(ratio_of(log_ratio), lower, upper)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Exponential of the log-ratio, held finite by `MAX_LOG_RATIO`."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def is_clipped(log_ratio: Tensor, advantage: Tensor, objective: Objective, clip: Clip | None = None) -> Tensor:
    """Return [U] bool: a bound of eq. 7 holds the ratio, so the unit's gradient is zero."""
    if objective.form == "linear":
        return torch.zeros_like(log_ratio, dtype=torch.bool)
    lower, upper = clip_bounds(advantage.to(log_ratio.dtype), objective, clip)
    ratio = ratio_of(log_ratio)
    return (ratio < lower) | (ratio > upper)


def member_coefficient(log_ratio_E: Tensor, advantage_E: Tensor, divisor_E: Tensor, objective: Objective) -> Tensor:
    """Closed form of ``d surrogate_e / d l_ej = A_e * rho_e * [not clipped] / divisor_e``, the same for every member.

    Args:
        log_ratio_E: [E] set log-ratios.
        advantage_E: [E] advantages.
        divisor_E: [E] sqrt(K), K or 1 (`scaling_divisor`).
        objective: gives the clip range.

    Returns:
        [E] coefficients, before the division by the number of events.
    """
    if objective.form == "linear":
        return advantage_E / divisor_E
    gate_E = ~is_clipped(log_ratio_E, advantage_E, objective) & (log_ratio_E <= MAX_LOG_RATIO)
    return torch.where(gate_E, advantage_E * ratio_of(log_ratio_E) / divisor_E, 0.0)


def count_totals(tensors: LossTensors) -> Totals:
    """Count the events, rows and sampled tokens of a whole mini-batch held in one place."""
    num_tokens = int(tensors.token_mask_MT.bool().sum())
    return Totals(tensors.cardinality_E.numel(), tensors.event_of_row_M.numel(), num_tokens)


def row_weight(tensors: LossTensors, reduction: Reduction, totals: Totals) -> Tensor:
    """Share of each member row in the mean.

    ``event``: every event counts once and its members share it, 1 / (E K_e). ``row``: 1 / M. ``token``: n_j / N.
    A set's share is the sum over its rows and a token's is its row's over n_j, so one definition serves all units.

    Returns:
        [M] in the type of the log-probabilities (at least float32).
    """
    dtype = torch.promote_types(tensors.current_MT.dtype, torch.float32)
    if reduction == "event":
        return 1.0 / (totals.num_events * tensors.cardinality_E[tensors.event_of_row_M].to(dtype))
    if reduction == "row":
        return torch.full_like(tensors.event_of_row_M, 1.0 / max(totals.num_rows, 1), dtype=dtype)
    return tensors.token_mask_MT.bool().sum(dim=1).to(dtype) / max(totals.num_tokens, 1)


def token_weight(tensors: LossTensors, reduction: Reduction, totals: Totals) -> Tensor:
    """Share of each token: its row's, divided among the row's sampled tokens; [M, T], 0 outside the mask."""
    mask_MT = tensors.token_mask_MT.bool()
    per_token_M = row_weight(tensors, reduction, totals) / mask_MT.sum(dim=1).clamp(min=1)
    return mask_MT * per_token_M.unsqueeze(1)


def units(objective: Objective, tensors: LossTensors, totals: Totals | None = None) -> Units:
    """Form the units an objective clips: active sets, member rows or tokens.

    Raises:
        IncompleteEventError: an event lacks a member or has one too many, whatever the unit.
    """
    totals = totals or count_totals(tensors)
    require_complete(tensors.event_of_row_M, tensors.cardinality_E, event_ids=tensors.event_ids)
    if objective.unit == "token":
        return _token_units(objective, tensors, totals)
    log_ratio_M = member_log_ratio(
        tensors.current_MT, tensors.old_MT, tensors.token_mask_MT, length_normalized=objective.length_normalized
    )
    weight_M = row_weight(tensors, objective.reduction, totals)
    if objective.unit == "sequence":
        clip_M = tensors.clip_E and tensors.clip_E.at(tensors.event_of_row_M)
        return Units(log_ratio_M, _row_advantage(tensors), weight_M, clip_M)
    log_ratio_E = set_log_ratio(log_ratio_M, tensors.event_of_row_M, tensors.cardinality_E, scaling=objective.scaling)
    weight_E = sum_members(weight_M, tensors.event_of_row_M, tensors.cardinality_E.numel())
    return Units(log_ratio_E, tensors.advantage_E, weight_E, tensors.clip_E)


def _token_units(objective: Objective, tensors: LossTensors, totals: Totals) -> Units:
    mask_MT = tensors.token_mask_MT.bool()
    log_ratio_MT = masked_difference(tensors.current_MT, tensors.old_MT.detach(), mask_MT)
    advantage_MT = _row_advantage(tensors).unsqueeze(1).expand_as(mask_MT)
    weight_MT = token_weight(tensors, objective.reduction, totals)
    clip = tensors.clip_E and tensors.clip_E.at(tensors.event_of_row_M.unsqueeze(1).expand_as(mask_MT)[mask_MT])
    return Units(log_ratio_MT[mask_MT], advantage_MT[mask_MT], weight_MT[mask_MT], clip)


def _row_advantage(tensors: LossTensors) -> Tensor:
    return tensors.advantage_E[tensors.event_of_row_M] if tensors.advantage_M is None else tensors.advantage_M


def objective_value(objective: Objective, tensors: LossTensors, totals: Totals | None = None) -> Tensor:
    """The scalar J to be maximised: weighted surrogate, less the divergence penalty, plus the entropy bonus (eq. 7).

    Args:
        objective: the choices.
        tensors: the mini-batch. Differentiable in ``current_MT`` and ``entropy_MT``.
        totals: counts of the whole mini-batch where ``tensors`` holds only a part of it.

    Returns:
        Scalar; the loss to minimise is its negative.

    Raises:
        IncompleteEventError: an event is incomplete.
        ConfigError: a term is switched on whose log-probabilities or entropies are absent.
    """
    totals = totals or count_totals(tensors)
    log_ratio, advantage, weight, clip = units(objective, _corrected(objective, tensors), totals)
    value = (weight * surrogate(log_ratio, advantage, objective, clip)).sum()
    if objective.kl_coef:
        value = value - objective.kl_coef * _mean_divergence(objective, tensors, totals)
    if objective.entropy_coef:
        value = value + objective.entropy_coef * _mean_entropy(objective, tensors, totals)
    return value


def correction_weight(objective: Objective, tensors: LossTensors) -> Tensor:
    """Truncated importance weight of each token, ``min(exp(trainer - engine), correction_cap)``.

    Trainer is ``old_MT``, engine is ``engine_MT``. The difference is that of the token itself, or the log-ratio of its
    member (eq. 3) or event (eq. 4), formed with the objective's own scaling and length normalisation.

    Args:
        objective: gives level and cap; the level is not ``none``.
        tensors: the mini-batch.

    Returns:
        [M, T] without gradient; what it says outside the mask is not read.

    Raises:
        ConfigError: there are no log-probabilities of the engine.
    """
    if tensors.engine_MT is None:
        raise ConfigError(f"correction = {objective.correction!r} needs the engine's log-probabilities; give engine_MT")
    trainer_MT, engine_MT, mask_MT = tensors.old_MT.detach(), tensors.engine_MT.detach(), tensors.token_mask_MT.bool()
    if objective.correction == "token":
        log_weight_MT = masked_difference(trainer_MT, engine_MT, mask_MT)
    else:
        log_weight_M = member_log_ratio(trainer_MT, engine_MT, mask_MT, length_normalized=objective.length_normalized)
        if objective.correction == "event":
            event_of_row_M = tensors.event_of_row_M
            log_weight_E = set_log_ratio(log_weight_M, event_of_row_M, tensors.cardinality_E, scaling=objective.scaling)
            log_weight_M = log_weight_E[event_of_row_M]
        log_weight_MT = log_weight_M.unsqueeze(1).expand_as(mask_MT)
    return ratio_of(log_weight_MT).clamp(max=objective.correction_cap)


class _WeighGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a weight."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grad_outputs[0] * weight.to(grad_outputs[0]), None


def _corrected(objective: Objective, tensors: LossTensors) -> LossTensors:
    """The tensors the surrogate is taken of: the same values, with each token's gradient weighted.

    A unit has one ratio, so weights finer than it (a token's in a set) cannot multiply its surrogate, only its
    derivative; weights as coarse as the unit or coarser amount to the same either way.
    """
    if objective.correction == "none":
        return tensors
    weight_MT = correction_weight(objective, tensors)
    weighted_MT: Tensor = _WeighGradient.apply(tensors.current_MT, weight_MT)  # type: ignore[no-untyped-call]
    return replace(tensors, current_MT=weighted_MT)


def divergence(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate of KL(current || reference) from ``log_ratio = log q_cur - log q_ref`` of tokens of q_cur.

    ``k1`` is the log-ratio d (unbiased, may be negative; as a loss its expected gradient is 0, so it only reports),
    ``k2`` is d^2 / 2 (biased, but its gradient is that of the KL), ``k3`` is ``exp(-d) - 1 + d`` (unbiased, never
    negative).
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    return ratio_of(-log_ratio) - 1.0 + log_ratio


def _mean_divergence(objective: Objective, tensors: LossTensors, totals: Totals) -> Tensor:
    if tensors.reference_MT is None:
        raise ConfigError("kl_coef is positive but there are no reference log-probabilities; give reference_MT")
    log_ratio_MT = masked_difference(tensors.current_MT, tensors.reference_MT.detach(), tensors.token_mask_MT.bool())
    weight_MT = token_weight(tensors, objective.reduction, totals)
    return (weight_MT * divergence(log_ratio_MT, objective.kl_estimator)).sum()


def _mean_entropy(objective: Objective, tensors: LossTensors, totals: Totals) -> Tensor:
    if tensors.entropy_MT is None:
        raise ConfigError("entropy_coef is not zero but there are no entropies; score the rows with entropy")
    if tensors.entropy_MT.shape != tensors.token_mask_MT.shape:
        raise ShapeError(
            f"entropy_MT: expected {list(tensors.token_mask_MT.shape)}, got {list(tensors.entropy_MT.shape)}"
        )
    entropy_MT = tensors.entropy_MT.masked_fill(~tensors.token_mask_MT.bool(), 0.0)
    return (token_weight(tensors, objective.reduction, totals) * entropy_MT).sum()
