"""Numbers that tell how an update behaves; none of them enters the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from srpo_train.objective.logratio import masked_difference, member_log_ratio, variance_split
from srpo_train.objective.spec import Objective
from srpo_train.objective.surrogate import LossTensors, Totals, is_clipped, ratio_of, units


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
