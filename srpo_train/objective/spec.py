"""The independent choices that make up an objective, as two frozen records.

A baseline is a combination of these fields (see `presets`), never a second code path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from srpo_envs.errors import ConfigError
from srpo_train.objective.logratio import Scaling

Unit = Literal["set", "sequence", "token"]
Form = Literal["clipped", "linear"]
Reduction = Literal["event", "row", "token"]
KlEstimator = Literal["k1", "k2", "k3"]
Singleton = Literal["zero", "raw"]
NonFinite = Literal["raise", "exclude"]
Weighting = Literal["row", "trajectory"]
Correction = Literal["none", "token", "member", "event"]
RoleWeights = Literal["none", "multiplicity", "balanced"]


@dataclass(frozen=True, kw_only=True)
class AdvantageSpec:
    """Which estimator gives advantages, and its constants.

    Example:
        >>> AdvantageSpec(group_key=("group", "event_type", "turn")).ddof
        1
    """

    estimator: str = "group_relative"
    """Name in the estimator registry (`advantage.ESTIMATORS`)."""
    group_key: tuple[str, ...] = ("group", "event_type")
    """Columns of the `CreditTable` whose equality makes two samples comparable."""
    ddof: int = 1
    """Degrees of freedom taken off the standard deviation: 1 is the sample, 0 the population."""
    std_floor: float = 1e-6
    """The epsilon added to the standard deviation in eq. 6."""
    singleton: Singleton = "zero"
    """A group of one: ``zero`` advantage, or ``raw`` (mean 0, deviation 1, as Dr. MAS)."""
    non_finite: NonFinite = "raise"
    """A NaN or infinite return: ``raise``, or ``exclude`` it from its group and give it advantage 0."""
    weighting: Weighting = "row"
    """What counts once in a group's mean and deviation (`row_relative` only): a ``row``, or a ``trajectory`` whose rows
    share its weight."""
    gamma: float = 1.0
    """Discount per event (`gae`, and the steps of `gigpo`)."""
    gae_lambda: float = 1.0
    """Trace decay per event (`gae` only)."""
    step_weight: float = 1.0
    """Weight of the comparison at equal states beside that of whole episodes (`gigpo` only)."""
    whiten: bool = False
    """Shift and scale the advantages of a batch to mean 0 and standard deviation 1, after the estimator."""

    def __post_init__(self) -> None:
        """Reject constants no estimator can use."""
        _one_of("singleton", self.singleton, Singleton)
        _one_of("non_finite", self.non_finite, NonFinite)
        _require(self.ddof in (0, 1), "ddof", "0 or 1", self.ddof)
        _require(self.std_floor > 0, "std_floor", "a positive number", self.std_floor)
        _one_of("weighting", self.weighting, Weighting)
        _require(0 <= self.gamma <= 1, "gamma", "a number in [0, 1]", self.gamma)
        _require(0 <= self.gae_lambda <= 1, "gae_lambda", "a number in [0, 1]", self.gae_lambda)
        _require(self.step_weight >= 0, "step_weight", "a number of at least 0", self.step_weight)

    @property
    def needs_critic(self) -> bool:
        """Whether the estimator reads a critic's values."""
        return self.estimator == "gae"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One policy-gradient objective over events.

    Example:
        >>> Objective(scaling="mean").clip_low
        0.2
    """

    name: str = "srpo"
    """Shown in reports."""
    advantage: AdvantageSpec = field(default_factory=AdvantageSpec)
    """How returns become advantages."""
    unit: Unit = "set"
    """What carries one ratio and one clip: the active set, a member's whole response, or a token."""
    scaling: Scaling = "sqrt"
    """Normalisation of the set log-ratio (eq. 4); used by the ``set`` unit only."""
    length_normalized: bool = False
    """Divide each member log-ratio by its number of sampled tokens (``set`` and ``sequence`` units)."""
    form: Form = "clipped"
    """``clipped`` is eq. 7; ``linear`` is advantage times log-ratio, the plain score-function gradient."""
    clip_low: float = 0.2
    """The ratio is held above ``1 - clip_low`` where the advantage is negative."""
    clip_high: float = 0.2
    """The ratio is held below ``1 + clip_high`` where the advantage is positive; infinity turns the bound off."""
    dual_clip: float | None = None
    """Upper bound of the ratio where the advantage is negative; above 1, usually 3. None is eq. 7 as written."""
    reduction: Reduction = "event"
    """What counts once in the mean: an event (eq. 7), a member row, or a token."""
    drop_uniform: bool = False
    """Leave out the events of a rollout group whose advantages are all 0, so that they do not count in the mean."""
    kl_coef: float = 0.0
    """Weight of the penalty on the divergence from the reference policy."""
    kl_estimator: KlEstimator = "k3"
    """Per-token estimator of that divergence."""
    entropy_coef: float = 0.0
    """Weight of the token-entropy bonus."""
    correction: Correction = "none"
    """Weigh each token's surrogate gradient by ``min(q_trainer / q_engine, correction_cap)``, taken of the token, its
    member or its event: with the same weights the engine that sampled gives slightly other probabilities."""
    correction_cap: float = 2.0
    """Largest such weight, at least 1; infinity truncates nothing."""
    role_weights: RoleWeights = "none"
    """Weigh the gradient of each role's rows: by one over its members in the event (``multiplicity``), or so that every
    role of a policy has the same mass (``balanced``). See `srpo_train.role_weights`."""

    def __post_init__(self) -> None:
        """Reject choices that do not name an objective."""
        _one_of("unit", self.unit, Unit)
        _one_of("scaling", self.scaling, Scaling)
        _one_of("form", self.form, Form)
        _one_of("reduction", self.reduction, Reduction)
        _one_of("kl_estimator", self.kl_estimator, KlEstimator)
        _require(self.clip_low > 0, "clip_low", "a positive number", self.clip_low)
        _require(self.clip_high > 0, "clip_high", "a positive number", self.clip_high)
        _require(self.dual_clip is None or self.dual_clip > 1, "dual_clip", "None or a number above 1", self.dual_clip)
        _require(self.kl_coef >= 0, "kl_coef", "a number of at least 0", self.kl_coef)
        _require(math.isfinite(self.entropy_coef), "entropy_coef", "a finite number", self.entropy_coef)
        _one_of("correction", self.correction, Correction)
        _one_of("role_weights", self.role_weights, RoleWeights)
        _require(self.correction_cap >= 1, "correction_cap", "a number of at least 1", self.correction_cap)


def _one_of(name: str, value: object, choices: Any) -> None:
    _require(value in get_args(choices), name, f"one of {get_args(choices)}", value)


def _require(is_right: bool, name: str, expected: str, value: object) -> None:
    if not is_right:
        raise ConfigError(f"objective field {name!r}: expected {expected}, got {value!r}")
