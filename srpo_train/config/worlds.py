"""The worlds: what is trained on, and what is evaluated."""

from __future__ import annotations

from typing import Any

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)

from srpo_train.config.values import Probability
from srpo_train.section import Section


class EnvConfig(Section):
    """The world that is trained on."""

    id: str
    """Registered environment id, as `srpo envs` lists them."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of that environment, as `srpo envs ID` lists them."""


class EvalConfig(Section):
    """Held-out evaluation during training."""

    every: NonNegativeInt = 0
    """Steps between evaluations; 0 never evaluates. The last step is evaluated too when this is not 0."""
    at_start: bool = True
    """Evaluate before the first step as well, when `every` is not 0."""
    num_tasks: PositiveInt = 64
    """Tasks per evaluation, the first ones of the held-out split."""
    samples_per_task: PositiveInt = 1
    """Episodes per task; k of Avg@k and Pass@k."""
    kwargs: dict[str, Any] = Field(default_factory=lambda: {"split": "test"})
    """Arguments that replace those of `env.kwargs` in the evaluation environment."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature of evaluation; 0 takes the most likely token."""
    top_p: Probability = 1.0
    """Nucleus of evaluation sampling; 1 keeps everything."""
    top_k: NonNegativeInt = 0
    """Tokens kept in evaluation sampling; 0 keeps everything."""
