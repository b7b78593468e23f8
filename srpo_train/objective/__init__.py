"""SRPO's equations (3) to (7) as pure functions, and every baseline as a combination of the same choices."""

from __future__ import annotations

from srpo_train.objective.advantage import (
    ESTIMATORS,
    AdvantageEstimator,
    discounted_return,
    estimate_advantage,
    generalized_advantage,
    group_relative,
    leave_one_out,
    mean_relative,
    register_estimator,
)
from srpo_train.objective.credit import Advantage, CreditTable
from srpo_train.objective.diagnostics import diagnose, engine_mismatch
from srpo_train.objective.logratio import VarianceSplit, member_log_ratio, set_log_ratio, variance_split
from srpo_train.objective.methods import METHODS, Method, describe
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
from srpo_train.objective.value import explained_variance, value_loss

__all__ = [
    "ESTIMATORS",
    "METHODS",
    "PRESETS",
    "Advantage",
    "AdvantageEstimator",
    "AdvantageSpec",
    "Clip",
    "CreditTable",
    "LossTensors",
    "Method",
    "Objective",
    "Totals",
    "VarianceSplit",
    "correction_weight",
    "count_totals",
    "describe",
    "diagnose",
    "discounted_return",
    "divergence",
    "engine_mismatch",
    "estimate_advantage",
    "explained_variance",
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
    "value_loss",
    "variance_split",
]
