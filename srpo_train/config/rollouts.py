"""How episodes are collected, and how their tokens are drawn."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from srpo_train.config.values import FinitePositive, Probability
from srpo_train.engines.kept import MOST_KEPT
from srpo_train.section import Section


class SamplingConfig(Section):
    """How training rollouts draw tokens."""

    temperature: FinitePositive = 1.0
    """Divides the logits, in sampling and in the log-probabilities that are trained."""
    top_p: Probability = 1.0
    """Nucleus, together with a `top_k`, which bounds it. What is left of the vocabulary is kept with every token, and
    all log-probabilities are those within it."""
    top_k: NonNegativeInt = 0
    """Most tokens left to draw from, at most 1024; 0 draws from all."""

    @model_validator(mode="after")
    def _what_is_left_is_bounded(self) -> SamplingConfig:
        if (self.top_p < 1 and not self.top_k) or self.top_k > MOST_KEPT:
            raise ValueError(
                f"top_p = {self.top_p}, top_k = {self.top_k}: what is left of the vocabulary is kept with every token "
                f"that is trained on, and needs a bound: a top_k from 1 to {MOST_KEPT}, or top_p = 1 and top_k = 0"
            )
        return self


class RolloutConfig(Section):
    """How episodes are collected."""

    prompts_per_step: PositiveInt = 16
    """Questions per training step."""
    group_size: PositiveInt = 8
    """G, episodes per question; advantages compare within these."""
    mode: Literal["rounds", "asynchronous"] = "rounds"
    """`rounds` samples all pending events as one batch, the same in every run; `asynchronous` has no barrier between
    episodes."""
    max_lag: NonNegativeInt = 0
    """Updates by which the weights that sampled may be older than those that are trained. Above 0, sampling goes on
    during updates: in `rounds` samples are always that old, in `asynchronous` at most. Needs an
    `objective.correction`."""
    early_start: bool = False
    """Train on a mini-batch as soon as its groups are complete, while the others of the step are under way;
    `asynchronous` with a `max_lag` only."""
    oversample: NonNegativeInt = 0
    """Episodes begun per question beyond `group_size`; the first `group_size` to finish are kept, which favours short
    ones. `asynchronous` only."""
    step_retries: NonNegativeInt = 2
    """Times an environment step is tried again after its surroundings failed, before its episode is dropped."""
    lost_step_retries: NonNegativeInt = 8
    """Times a step is collected again when not one of its episodes came through; the pauses grow from 1 to 60 s."""
    straggler_grace_s: PositiveFloat = 10.0
    """Seconds a round waits for slow environments before it goes on without them; `rounds` only."""
    step_timeout_s: PositiveFloat = 60.0
    """Seconds after which an environment step counts as hung and its episode is dropped."""
    request_timeout_s: PositiveFloat = 600.0
    """Seconds after which a response, its wait in the engine's queue included, is cancelled and its episode dropped;
    `inf` waits for ever. `asynchronous` only."""
    episode_timeout_s: PositiveFloat = 3600.0
    """Seconds after which an episode is dropped; `inf` waits for ever. `asynchronous` only."""
    num_workers: PositiveInt = 8
    """Threads that run environment steps."""
    max_concurrent: PositiveInt = 512
    """Episodes that run at once; the rest wait."""

    @model_validator(mode="after")
    def _rounds_keep_every_episode(self) -> RolloutConfig:
        if self.oversample and self.mode == "rounds":
            raise ValueError(
                f"oversample = {self.oversample} keeps the episodes that finish first, and rounds finish together; "
                'use mode = "asynchronous", or oversample = 0'
            )
        if self.early_start and (self.mode == "rounds" or not self.max_lag):
            raise ValueError(
                "early_start: groups come one by one only where sampling goes on beside the update; "
                'use mode = "asynchronous" and a max_lag of at least 1, or early_start = false'
            )
        return self
