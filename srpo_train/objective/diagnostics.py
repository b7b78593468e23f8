"""Numbers that tell how an update behaves; none of them enters the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from srpo_train.objective.logratio import masked_difference, member_log_ratio, set_log_ratio, variance_split
from srpo_train.objective.spec import Objective
from srpo_train.objective.surrogate import (
    Clip,
    LossTensors,
    Totals,
    Units,
    correction_weight,
    is_clipped,
    ratio_of,
    units,
)


@torch.no_grad()
def diagnose(objective: Objective, tensors: LossTensors, totals: Totals | None = None) -> dict[str, float]:
    """Measure ratios, clipping, divergence and eq. 5 on a whole mini-batch.

    Args:
        objective: the choices the mini-batch is trained with.
        tensors: the whole mini-batch.
        totals: counts, where they are known.

    Returns:
        Stable keys; units are sets, rows or tokens as the objective says.
        ``clip_fraction``: share of the units whose gradient a bound cuts off.
        ``ratio_mean``, ``ratio_min``, ``ratio_max``, ``log_ratio_std``: of the units' ratios.
        ``effective_size``: (sum rho)^2 / sum rho^2 over the number of units; 1 at the behavior policy.
        ``approx_kl``: mean per sampled token of the k3 estimate of KL(old || current), in nats.
        ``num_events``, ``num_rows``, ``num_tokens``, ``num_zero_advantage_events``, ``cardinality_mean``: counts.
        ``var_set_log_ratio/K=k``, ``var_set_log_ratio_cov/K=k``: Var(L) and its covariance part per cardinality.
    """
    log_ratio, advantage, _, clip = units(objective, tensors, totals)
    mask_MT = tensors.token_mask_MT.bool()
    report = {
        "clip_fraction": _mean(is_clipped(log_ratio, advantage, objective, clip).double()),
        **_ratio_summary(log_ratio.double()),
        "approx_kl": _approximate_kl(masked_difference(tensors.current_MT, tensors.old_MT, mask_MT)[mask_MT].double()),
        "num_events": float(tensors.cardinality_E.numel()),
        "num_rows": float(tensors.event_of_row_M.numel()),
        "num_tokens": float(mask_MT.sum()),
        "num_zero_advantage_events": float((tensors.advantage_E == 0).sum()),
        "cardinality_mean": _mean(tensors.cardinality_E.double()),
    }
    return report | _cardinality_report(objective, tensors)


@torch.no_grad()
def engine_mismatch(objective: Objective, parts: Sequence[LossTensors]) -> dict[str, float]:
    """Measure how far the trainer's log-probabilities (``old_MT``) are from those of the engine (``engine_MT``).

    Args:
        objective: gives unit, scaling and clip.
        parts: mini-batches, measured as one; those without ``engine_MT`` are left out.

    Returns:
        ``engine_gap``, ``engine_gap_max``: mean and largest absolute difference of a sampled token, in nats.
        ``engine_event_gap``: mean absolute set log-difference (eq. 4 with the engine as the old policy), in nats.
        ``engine_clip_share``: share of the units whose ratio of trainer to engine is outside the clip, if any.
        ``correction_cap_share``: share of the sampled tokens whose weight is the cap; only with a correction.
        All are 0 when nothing is measured; a difference that is not a number shows in each.
    """
    # With the engine in the place of the behavior policy, the ratios are what the mismatch alone makes of them.
    known = [
        replace(part, current_MT=part.old_MT, old_MT=part.engine_MT) for part in parts if part.engine_MT is not None
    ]
    gap = _joined([_token_difference(part) for part in known]).abs()
    event_gap = _joined([_set_difference(objective, part) for part in known]).abs()
    is_outside = _joined([_is_outside(objective, units(objective, part)) for part in known])
    report = {
        "engine_gap": _mean(gap),
        "engine_gap_max": float(gap.max()) if gap.numel() else 0.0,
        "engine_event_gap": _mean(event_gap),
        "engine_clip_share": _mean(is_outside),
    }
    if objective.correction != "none":
        is_cut = [_is_cut_off(objective, part) for part in parts if part.engine_MT is not None]
        report["correction_cap_share"] = _mean(_joined(is_cut))
    return report


def _token_difference(tensors: LossTensors) -> Tensor:
    mask_MT = tensors.token_mask_MT.bool()
    return masked_difference(tensors.current_MT, tensors.old_MT, mask_MT)[mask_MT]


def _set_difference(objective: Objective, tensors: LossTensors) -> Tensor:
    log_ratio_M = member_log_ratio(
        tensors.current_MT, tensors.old_MT, tensors.token_mask_MT, length_normalized=objective.length_normalized
    )
    return set_log_ratio(log_ratio_M, tensors.event_of_row_M, tensors.cardinality_E, scaling=objective.scaling)


def _is_outside(objective: Objective, found: Units) -> Tensor:
    """Return [U] bool: beyond either bound, whatever the sign of the advantage; NaN is outside."""
    if objective.form == "linear":
        return torch.zeros_like(found.log_ratio, dtype=torch.bool)
    clip, ratio = found.clip or Clip.of(objective), ratio_of(found.log_ratio)
    return ~((ratio >= clip.lower) & (ratio <= clip.upper))


def _is_cut_off(objective: Objective, tensors: LossTensors) -> Tensor:
    """Return a bool for each sampled token: its weight is the cap; NaN is cut off."""
    weight_MT = correction_weight(objective, tensors)
    return ~(weight_MT < objective.correction_cap)[tensors.token_mask_MT.bool()]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.float64), *(part.double() for part in parts)])


def _ratio_summary(log_ratio: Tensor) -> dict[str, float]:
    if not log_ratio.numel():
        return {"ratio_mean": 1.0, "ratio_min": 1.0, "ratio_max": 1.0, "log_ratio_std": 0.0, "effective_size": 1.0}
    ratio = ratio_of(log_ratio)
    return {
        "ratio_mean": float(ratio.mean()),
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "log_ratio_std": float(log_ratio.std(correction=0)),
        "effective_size": float(ratio.sum().square() / ratio.square().sum() / ratio.numel()),
    }


def _approximate_kl(log_ratio: Tensor) -> float:
    """k3 of KL(old || current) on tokens sampled from old: rho - 1 - log rho."""
    return _mean(ratio_of(log_ratio) - 1.0 - log_ratio)


def _cardinality_report(objective: Objective, tensors: LossTensors) -> dict[str, float]:
    log_ratio_M = member_log_ratio(
        tensors.current_MT, tensors.old_MT, tensors.token_mask_MT, length_normalized=objective.length_normalized
    )
    report = {}
    for split in variance_split(log_ratio_M, tensors.event_of_row_M, tensors.cardinality_E, scaling=objective.scaling):
        report[f"var_set_log_ratio/K={split.cardinality}"] = split.variance
        report[f"var_set_log_ratio_cov/K={split.cardinality}"] = split.covariance_part
    return report


def _mean(value: Tensor) -> float:
    return float(value.mean()) if value.numel() else 0.0
