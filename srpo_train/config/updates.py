"""What is maximised, and how."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
)

from srpo_train.config.policies import PolicyOptimConfig
from srpo_train.config.values import Beta, FinitePositive
from srpo_train.section import Section

if TYPE_CHECKING:
    from srpo_train.objective.spec import Objective


class ObjectiveConfig(Section):
    """The objective: a preset, and the choices that differ from it. A key left out keeps the preset's value."""

    preset: str = "srpo"
    """Named objective, as `srpo presets` lists them; `ppo` trains a critic beside the policies."""
    estimator: str | None = None
    """Advantage estimator."""
    group_key: Annotated[tuple[str, ...], Strict(False)] | None = None
    """Columns whose equality makes two samples comparable, such as `["group", "event_type"]`."""
    ddof: int | None = None
    """Degrees of freedom taken off the standard deviation: 1 is the sample, 0 the population."""
    std_floor: float | None = None
    """The epsilon added to the standard deviation (eq. 6)."""
    singleton: str | None = None
    """A comparison group of one: `zero` advantage or `raw` return."""
    non_finite: str | None = None
    """A return that is not finite: `raise`, or `exclude` it from its group."""
    weighting: str | None = None
    """What counts once in a group's mean and deviation (`row_relative` only): a `row`, or a `trajectory`."""
    gamma: float | None = None
    """Discount per event (`gae`, and the steps of `gigpo`)."""
    gae_lambda: float | None = None
    """Trace decay per event (`gae` only)."""
    step_weight: float | None = None
    """Weight of the comparison at equal states beside that of whole episodes (`gigpo` only)."""
    whiten: bool | None = None
    """Shift and scale the advantages of a batch to mean 0 and standard deviation 1."""
    unit: str | None = None
    """What carries one ratio and one clip: `set`, `sequence` or `token`."""
    scaling: str | None = None
    """Normalisation of the set log-ratio (eq. 4): `sqrt`, `none` or `mean`."""
    length_normalized: bool | None = None
    """Divide each member log-ratio by its number of sampled tokens."""
    form: str | None = None
    """`clipped` (eq. 7) or `linear`, the score-function gradient without a ratio."""
    clip_low: float | None = None
    """The ratio is held above 1 - clip_low where the advantage is negative."""
    clip_high: float | None = None
    """The ratio is held below 1 + clip_high where the advantage is positive."""
    dual_clip: float | None = None
    """Upper bound of the ratio where the advantage is negative; `inf` turns off a preset's bound."""
    reduction: str | None = None
    """What counts once in the mean: `event` (eq. 7), `row` or `token`."""
    drop_uniform: bool | None = None
    """Leave out the events of a question whose advantages are all 0, so that they do not count in the mean."""
    kl_coef: float | None = None
    """Weight of the penalty on the divergence from the reference policy."""
    kl_estimator: str | None = None
    """Per-token estimator of that divergence: `k1`, `k2` or `k3`."""
    entropy_coef: float | None = None
    """Weight of the token-entropy bonus."""
    correction: str | None = None
    """Weigh each token by trainer over engine probability, of the `token`, `member` or `event`; `none` is off."""
    correction_cap: float | None = None
    """Largest weight of the correction, at least 1; `inf` truncates nothing."""
    role_weights: str | None = None
    """Weights on the gradient of each role: `none`, `multiplicity` (one over its members in the event) or `balanced`
    (every role of a policy has the same mass)."""

    def overrides(self) -> dict[str, Any]:
        """Return the fields that differ from the preset."""
        chosen = self.model_dump(exclude_none=True, exclude={"preset"})
        if chosen.get("dual_clip") == math.inf:
            chosen["dual_clip"] = None
        return chosen

    def build(self) -> Objective:
        """Return the objective; names are checked here, where torch may be imported.

        Raises:
            UnknownIdError: no preset of that name.
            ConfigError: a field has a value it cannot have.
        """
        from srpo_train.objective.presets import preset

        return preset(self.preset, **self.overrides())


class OptimConfig(Section):
    """The optimiser (AdamW), its schedule and how a batch is cut."""

    lr: FinitePositive = 1e-6
    """Peak learning rate."""
    betas: Annotated[tuple[Beta, Beta], Strict(False)] = (0.9, 0.999)
    """Decay of the running mean and of the running square of the gradient."""
    eps: FinitePositive = 1e-8
    """Added to the root of the running square."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """The gradient is scaled down to this norm; the norm before it is logged."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up, down to 0 at the last step."""
    warmup_steps: NonNegativeInt = 0
    """Training steps over which the learning rate rises linearly from 0."""
    num_minibatches: PositiveInt = 1
    """Optimiser steps per pass over a step's events; an event is never split."""
    num_epochs: PositiveInt = 1
    """Passes over a step's events."""
    micro_batch_tokens: PositiveInt = 16384
    """Most tokens (rows times longest row, or all rows' where they are packed) of one forward pass; changes memory and
    time, not the gradient."""
    packing: Literal["auto"] | bool = "auto"
    """Rows of a pass end to end without padding (`true`) or padded to the longest; `auto` packs where the model's
    attention does it well. Changes time, not the gradient."""
    max_row_tokens: PositiveInt = 8192
    """A member row with more prompt and response tokens is dropped with its whole event, and counted."""
    max_nonfinite_steps: NonNegativeInt = 5
    """Consecutive optimiser steps with a loss or gradient that is not finite that are skipped before the run fails."""


class CriticConfig(Section):
    """The critic of presets that need one (`ppo`), which values the state before each event for the whole team."""

    model: str | None = None
    """Directory or hub id of a transformers causal model with the policies' tokenizer; a head that gives one number, at
    first 0, takes the place of its own. All of it is trained."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of weights and activations."""
    device: str | None = None
    """Where it is."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass."""
    value_clip: PositiveFloat = 0.2
    """A value that has moved by this much towards its target moves no further in a step; `inf` for no such clip."""
    optim: PolicyOptimConfig = PolicyOptimConfig()
    """What differs from `[optim]`."""
