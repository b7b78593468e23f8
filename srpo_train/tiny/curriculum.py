"""What distinguishes one embedded policy from another: whom it imitates, how long, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from srpo_envs.records import Episode
from srpo_train.tiny.experts import Example, HabitsT


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase(Generic[HabitsT]):
    """One stretch of supervised learning."""

    name: str
    """Shown by the progress bar and kept in the report."""
    habits: HabitsT
    """Of the responses to imitate."""
    level_weights: Mapping[int, float]
    """Share of each level among the episodes the examples come from."""
    num_steps: int
    """Optimiser steps."""
    learning_rate: float
    """Peak of AdamW's rate; it warms up over 50 steps and falls along a cosine to a twentieth."""
    batch_size: int = 32
    """Examples a step."""
    num_episodes: int = 6000
    """Episodes the examples are drawn from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One way of playing a finished policy on held-out questions."""

    env_id: str
    """Registered environment."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments, without split and size."""
    temperature: float = 1.0
    """0 takes the likeliest tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curriculum(Generic[HabitsT]):
    """The recipe of one embedded policy, as far as it is about its world."""

    name: str
    """Name of the shipped checkpoint, after ``builtin:``."""
    clean: HabitsT
    """Flawless habits."""
    phases: tuple[Phase[HabitsT], ...]
    """Supervised phases in order."""
    play: Callable[[int, HabitsT, np.random.Generator], Iterator[Example]]
    """Plays one training episode of a level in a random workflow; yields responses with these habits."""
    role_weights: Mapping[str, float]
    """Share of each kind of event in a batch."""
    pieces: str
    """Regular expression of the texts that the tokenizer's merges never cross."""
    words: tuple[str, ...] = ()
    """Texts that are one token each, beside the tags."""
    measurements: Mapping[str, Measurement]
    """What the report holds."""
    num_measured: int = 256
    """Held-out questions each measurement plays."""
    rates: Callable[[Sequence[Episode]], dict[str, float]]
    """Further rates of the episodes of a measurement."""
