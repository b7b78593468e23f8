r"""Chains of digits worked out as an embedded policy writes them, right and spoiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from srpo_envs.tasks.arithmetic import partial_results, write_partial_results
from srpo_train.tiny.experts import Habits


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHabits(Habits):
    """How often an expert errs who works a chain out.

    Example:
        ``ChainHabits(wrong_step=0.1)`` gets a chain of three steps right in about 0.9**3 of its responses.
    """

    wrong_step: float = 0.0
    """A step's result is replaced by a random digit, from which the chain goes on."""
    flipped_minus: float = 0.0
    """A subtraction is done the wrong way round, b - a for a - b; drawn once for a response."""
    bare_guess: float = 0.0
    """A solver boxes a random digit without working."""


def write_solution(start: int, steps: Sequence[tuple[str, int]], habits: ChainHabits, rng: np.random.Generator) -> str:
    r"""Return a response that works a chain out and boxes its result: ``<think>3*7=1-4=7</think>\boxed{7}``."""
    if rng.random() < habits.bare_guess:
        return write_boxed(random_digit(rng))
    working, result = write_working(start, steps, habits, rng)
    return working + write_boxed(result)


def write_working(
    start: int, steps: Sequence[tuple[str, int]], habits: ChainHabits, rng: np.random.Generator
) -> tuple[str, int]:
    """Return the thinking about a chain, and the result it arrives at."""
    results = _spoiled_results(start, steps, habits, rng)
    return f"<think>{write_partial_results(start, steps, results)}</think>", results[-1]


def write_boxed(answer: object) -> str:
    """Return an answer in its box."""
    return f"\\boxed{{{answer}}}"


def random_digit(rng: np.random.Generator) -> int:
    """Return any digit."""
    return int(rng.integers(10))


def _spoiled_results(
    start: int, steps: Sequence[tuple[str, int]], habits: ChainHabits, rng: np.random.Generator
) -> list[int]:
    is_flipped = rng.random() < habits.flipped_minus
    results: list[int] = []
    for op, digit in steps:
        value = results[-1] if results else start
        result = (digit - value) % 10 if op == "-" and is_flipped else partial_results(value, [(op, digit)])[0]
        results.append(random_digit(rng) if rng.random() < habits.wrong_step else result)
    return results
