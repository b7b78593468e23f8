"""SRPO's equations (3) to (7) as pure functions, and every baseline as a combination of the same choices."""

from __future__ import annotations

from srpo_train.objective.advantage import (
    ESTIMATORS,
    Advantage,
    AdvantageEstimator,
    CreditTable,
    estimate_advantage,
    generalized_advantage,
    group_relative,
    leave_one_out,
    mean_relative,
    register_estimator,
)
from srpo_train.objective.diagnostics import diagnose, engine_mismatch
from srpo_train.objective.logratio import VarianceSplit, member_log_ratio, set_log_ratio, variance_split
from srpo_train.objective.presets import PRESETS, preset
from srpo_train.objective.spec import AdvantageSpec, Objective
from srpo_train.objective.surrogate import (
    Clip,
    LossTensors,
    Totals,
    correction_weight,
    count_totals,
    divergence,
    objective_value,
    surrogate,
)

__all__ = [
    "ESTIMATORS",
    "PRESETS",
    "Advantage",
    "AdvantageEstimator",
    "AdvantageSpec",
    "Clip",
    "CreditTable",
    "LossTensors",
    "Objective",
    "Totals",
    "VarianceSplit",
    "correction_weight",
    "count_totals",
    "diagnose",
    "divergence",
    "engine_mismatch",
    "estimate_advantage",
    "generalized_advantage",
    "group_relative",
    "leave_one_out",
    "mean_relative",
    "member_log_ratio",
    "objective_value",
    "preset",
    "register_estimator",
    "set_log_ratio",
    "surrogate",
    "variance_split",
]
