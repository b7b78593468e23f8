"""What is simulated, completely described; read like a recipe, with the same overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Strict

from srpo_envs.errors import ConfigError
from srpo_train.config.reading import assign, check_section, parse_override, read_toml
from srpo_train.section import Section

Straddle = Literal["nothing", "episodes", "requests"]
"""What may go on over a push of weights: ``nothing`` (a batch is over before), episodes between two of their events, or
requests in the middle."""


class EpisodesConfig(Section):
    """What is sampled, where no run's records are given."""

    cardinalities: Annotated[tuple[PositiveInt, ...], Strict(False), Field(min_length=1)] = (3, 1, 3, 1, 1)
    """K of each event of an episode: three drafts, a verdict, three revisions, a verdict and an answer."""
    prompt_tokens: PositiveInt = 600
    """Tokens of a prompt, beyond what a prefix cache holds."""
    median_tokens: PositiveFloat = 800.0
    """Sampled tokens that half of the responses stay below."""
    sigma_tokens: NonNegativeFloat = 1.0
    """Standard deviation of the logarithm of the lengths."""
    max_tokens: PositiveInt = 8192
    """Limit of a response."""
    median_env_s: NonNegativeFloat = 0.3
    """Seconds of an environment's move, its tools included; half of them take less."""
    sigma_env: NonNegativeFloat = 0.8
    """Standard deviation of the logarithm of these."""


class EngineTimes(Section):
    """One copy of the policy that samples. The default is a model of 7 billion parameters in bfloat16 on one GPU."""

    gpus: PositiveInt = 1
    """GPUs of a copy."""
    step_s: NonNegativeFloat = 0.012
    """Seconds of a decoding step whatever its rows."""
    step_s_per_row: NonNegativeFloat = 8e-5
    """Seconds that every row adds."""
    prefill_s_per_token: NonNegativeFloat = 4e-5
    """Seconds to read a prompt token."""
    max_rows: PositiveInt = 256
    """Responses decoded together."""


class UpdateTimes(Section):
    """The trainer. The default is the same model under full fine-tuning."""

    gpu_s_per_token: NonNegativeFloat = 1.6e-4
    """GPU seconds for a token of a trained row: scoring, and forward and backward pass."""
    step_s: NonNegativeFloat = 1.0
    """Seconds of an optimiser step beside that, whatever the GPUs: exchange of gradients, optimiser, data."""


class PushTimes(Section):
    """New weights on their way to the engines."""

    transfer_s: NonNegativeFloat = 2.0
    """Seconds from the end of an update until the engines can take the weights; they sample meanwhile."""
    swap_s: NonNegativeFloat = 0.5
    """Seconds in which they put them in and do not sample."""


class Scenario(Section):
    """A training run on a cluster."""

    gpus: PositiveInt = 64
    """GPUs in all."""
    prompts_per_step: PositiveInt = 64
    """Groups of a training step."""
    group_size: PositiveInt = 8
    """Episodes of a group."""
    max_concurrent: PositiveInt = 1_000_000
    """Episodes that run at once."""
    num_steps: PositiveInt = 8
    """Training steps that are measured."""
    warmup_steps: NonNegativeInt = 3
    """Training steps before them: a run begins with empty queues."""
    num_minibatches: PositiveInt = 2
    """Optimiser steps of a training step."""
    lost_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of finished groups that are thrown away: a site that vanished, a proof that does not hold."""
    seed: NonNegativeInt = 0
    """Decides every draw."""
    episodes: EpisodesConfig = EpisodesConfig()
    engine: EngineTimes = EngineTimes()
    update: UpdateTimes = UpdateTimes()
    push: PushTimes = PushTimes()


class Mode(Section):
    """Who waits for whom."""

    name: str
    """How tables call it."""
    is_colocated: bool = False
    """All GPUs sample, then all train; otherwise some do the one and the others the other."""
    max_lag: NonNegativeInt = 0
    """Largest number of updates between sampling and training."""
    straddle: Straddle = "nothing"
    """What may go on over a push."""
    in_rounds: bool = False
    """All episodes ask at once; otherwise each as soon as it can."""
    early_start: bool = False
    """A mini-batch is trained on as soon as its groups are complete."""


_KINDS: dict[str, dict[str, Any]] = {
    "": {"straddle": "episodes"},
    "rounds": {"in_rounds": True},
    "early start": {"straddle": "episodes", "early_start": True},
    "whole batches": {},
    "requests too": {"straddle": "requests"},
}
_NAME = re.compile(r"lag (\d+)(?:, (.+))?")

MODE_NAMES = ("in turn, rounds", "in turn", "lag 1, rounds", "lag 1", "lag 2", "lag 4", "lag 2, early start")
"""Modes of the trainer that are compared when none is named."""


def mode_named(name: str) -> Mode:
    """Return a mode by its name: ``in turn`` or ``lag N``, the latter with ``rounds`` or another kind after a comma.

    The trainer has no ``whole batches`` (a batch that ends before weights are pushed, without rounds) and no ``requests
    too`` (requests that go on over a push); they show what lies on both sides of it.

    Raises:
        ConfigError: there is no such mode.

    Example:
        >>> mode_named("lag 2, early start").max_lag
        2
    """
    if name in ("in turn", "in turn, rounds"):
        return Mode(name=name, is_colocated=True, in_rounds=name != "in turn")
    match = _NAME.fullmatch(name)
    if not match or (match[2] or "") not in _KINDS or int(match[1]) < 1:
        kinds = ", ".join(repr(f"lag 2, {kind}") for kind in _KINDS if kind)
        raise ConfigError(f"mode {name!r}: expected 'in turn', 'in turn, rounds', 'lag 2' (or another number), {kinds}")
    return Mode(name=name, max_lag=int(match[1]), **_KINDS[match[2] or ""])


def load_scenario(path: Path | None, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario, or take the default one, and apply overrides.

    Raises:
        ConfigError: a key is unknown or a value cannot be used.
    """
    data: dict[str, Any] = read_toml(path) if path else {}
    sources: dict[tuple[str, ...], str] = {}
    for text in overrides:
        keys, value = parse_override(text)
        assign(data, keys, value, text)
        sources[keys] = text
    return check_section(Scenario, data, source=str(path or "scenario"), overrides=sources)
