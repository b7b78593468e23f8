"""Policies, and what each may have of its own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    model_validator,
)

from srpo_train.config.values import Beta, FinitePositive, Probability
from srpo_train.section import Section

BUILTIN_TEAM = "builtin:tiny-team"
"""Name of the embedded tiny policy in ``policies.<id>.model``."""

ALL_LINEAR = "all-linear"
"""Value of ``policies.<id>.adapter.targets`` for every linear layer below the output head."""


class AdapterConfig(Section):
    """A LoRA adapter over the policy's model, which stays frozen. Policies over one model have it in memory once."""

    rank: PositiveInt = 64
    """Rank of each update."""
    alpha: FinitePositive = 32.0
    """The update is scaled by alpha / rank."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(rank) instead, which keeps the size of updates when the rank grows."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Strict(False), Field(min_length=1)] = "all-linear"
    """Linear layers that get one: all below the output head, or a list of names such as `["q_proj", "v_proj"]`."""
    init: Literal["kaiming", "gaussian"] = "kaiming"
    """First weights of the inner factor; the outer one is 0, so that a policy starts as its model."""
    dropout: float = 0.0
    """Must be 0: the ratio compares two forward passes over the same tokens, which must not differ by chance."""

    @model_validator(mode="after")
    def _has_no_dropout(self) -> AdapterConfig:
        if self.dropout:
            raise ValueError(
                f"dropout: must be 0, got {self.dropout}; random masks would move the set ratio away from 1 before any "
                "update, and make gradients of an event's members disagree about it"
            )
        return self


class PolicyOptimConfig(Section):
    """What differs from `[optim]` for this policy, or for the critic. How a batch is cut is the same for all."""

    lr: FinitePositive | None = None
    """Peak learning rate."""
    betas: Annotated[tuple[Beta, Beta], Strict(False)] | None = None
    """Decay of the running mean and of the running square of the gradient."""
    eps: FinitePositive | None = None
    """Added to the root of the running square."""
    weight_decay: NonNegativeFloat | None = None
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat | None = None
    """The policy's gradient is scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine"] | None = None
    """Course of the learning rate after the warm-up."""
    warmup_steps: NonNegativeInt | None = None
    """Training steps over which the learning rate rises linearly from 0."""


class PolicyObjectiveConfig(Section):
    """What differs from `[objective]` for this policy: its clip, where its events hold no member with another clip."""

    clip_low: PositiveFloat | None = None
    """The ratio is held above 1 - clip_low where the advantage is negative."""
    clip_high: PositiveFloat | None = None
    """The ratio is held below 1 + clip_high where the advantage is positive."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Upper bound of the ratio where the advantage is negative; `inf` for none."""


class PolicySamplingConfig(Section):
    """What differs from `[sampling]` for this policy; evaluation keeps its own settings."""

    temperature: FinitePositive | None = None
    """Divides the logits, in sampling and in the log-probabilities that are trained."""
    top_p: Probability | None = None
    """Nucleus."""
    top_k: NonNegativeInt | None = None
    """Tokens kept."""


class PolicyConfig(Section):
    """One set of parameters; roles that share it share its weights and its optimiser."""

    model: str
    """Directory or hub id of a transformers causal model, or directory of a LoRA adapter; `builtin:tiny-team`,
    `builtin:tiny-searchers`, `builtin:tiny-workflows` and `builtin:tiny-coders` ship with the package."""
    trainable: bool = True
    """`false` for a policy that plays and is never updated; its events still count in the objective."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of weights and activations. Behind half-precision weights the optimiser keeps float32 ones."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto` for a GPU where there is one."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the tokenizer's chat template, such as `enable_thinking = false`."""
    adapter: AdapterConfig | None = None
    """A LoRA adapter over the model; without this table the model itself is trained."""
    optim: PolicyOptimConfig = PolicyOptimConfig()
    """What differs from `[optim]`."""
    objective: PolicyObjectiveConfig = PolicyObjectiveConfig()
    """What differs from `[objective]`."""
    sampling: PolicySamplingConfig = PolicySamplingConfig()
    """What differs from `[sampling]`."""

    @model_validator(mode="after")
    def _trains_what_it_sets_up(self) -> PolicyConfig:
        if not self.trainable and self.adapter:
            raise ValueError("adapter: a new adapter that is not trained changes nothing; leave it out, or train it")
        if not self.trainable and self.optim != PolicyOptimConfig():
            raise ValueError("optim: a policy with trainable = false has no optimiser; leave it out, or train it")
        return self
