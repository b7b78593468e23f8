r"""The workflows over chains of digits: how a chain is judged, split into parts and put together again.

Everything up to the last multiplication of a chain belongs together; the additions and subtractions behind it can be
worked out by somebody else, from 0, and added: ``3*7-4+8`` is ``3*7`` and ``0-4+8``. A chain that ends in a
multiplication has one part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from srpo_envs.parsing import extract_boxed
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_train.tiny.arithmetic.chains import ChainHabits, random_digit, write_boxed, write_solution, write_working
from srpo_train.tiny.workflows.experts import WorkflowCast, WorkflowHabits, write_verdict

_STEP = re.compile(r"([-+*])(\d)")
_PART_LENGTH = 1  # steps of a part, where the chain leaves the choice

Steps = Sequence[tuple[str, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArithmeticHabits(WorkflowHabits):
    """How often an expert of a workflow over arithmetic errs."""

    wrong_step: float = 0.0
    """As in `ChainHabits`."""
    flipped_minus: float = 0.0
    """As in `ChainHabits`."""

    def chain(self, bare_guess: float) -> ChainHabits:
        """Return the habits of working a chain out."""
        return ChainHabits(wrong_step=self.wrong_step, flipped_minus=self.flipped_minus, bare_guess=bare_guess)


CLEAN = ArithmeticHabits()
"""No mistakes."""


class ArithmeticWorkflowCast(WorkflowCast[ArithmeticHabits]):
    """Experts who work chains of digits out."""

    def solve(self, habits: ArithmeticHabits, rng: np.random.Generator) -> str:
        """Work the chain out."""
        return write_solution(*self._chain, habits.chain(habits.bare_guess), rng)

    def judge(self, draft: str | None, habits: ArithmeticHabits, rng: np.random.Generator) -> str:
        """Work the chain out and compare."""
        working, result = write_working(*self._chain, habits.chain(0.0), rng)
        return working + write_verdict(draft == str(result))

    def split(self, rng: np.random.Generator, *, is_careful: bool) -> Sequence[str]:
        """Cut behind the last multiplication, or anywhere."""
        start, steps = self._chain
        if not is_careful:
            cut = int(rng.integers(1, len(steps) + 1))
            return write_parts(start, [part for part in (steps[:cut], steps[cut:]) if part])
        return write_parts(start, split_steps(steps, most=getattr(self.env, "max_subtasks", 1)))

    def work(self, subtask: str, habits: ArithmeticHabits, rng: np.random.Generator) -> str:
        """Work a part out; without one that is a chain, guess."""
        steps = [(op, int(digit)) for op, digit in _STEP.findall(subtask)]
        if not (subtask[:1].isdigit() and steps):
            return write_boxed(random_digit(rng))
        return write_solution(int(subtask[0]), steps, habits.chain(habits.bare_part), rng)

    def combine(self, results: Sequence[str | None], habits: ArithmeticHabits, rng: np.random.Generator) -> str:
        """Add the results that are digits."""
        digits = [int(box) for text in results if (box := extract_boxed(text or "")) and re.fullmatch("[0-9]", box)]
        if len(digits) > 1:
            steps = [("+", digit) for digit in digits[1:]]
            return write_solution(digits[0], steps, habits.chain(habits.bare_part), rng)
        return write_boxed(digits[0] if digits and rng.random() >= habits.bare_part else random_digit(rng))

    @property
    def _chain(self) -> tuple[int, Steps]:
        return self.task.info["start"], self.task.info["steps"]


def split_steps(steps: Steps, most: int) -> list[Steps]:
    """Return the steps of a chain in at most `most` parts, of which all but the first only add and subtract."""
    last_product = max((index for index, (op, _) in enumerate(steps) if op == "*"), default=-1)
    cut = max(last_product + 1, _PART_LENGTH)
    parts = [steps[:cut]]
    while cut < len(steps) and len(parts) < most:
        end = len(steps) if len(parts) == most - 1 else cut + _PART_LENGTH
        parts.append(steps[cut:end])
        cut = end
    return parts if cut >= len(steps) else [steps]


def write_parts(start: int, parts: Sequence[Steps]) -> list[str]:
    """Return each part as a chain: the first from the start of the whole, the others from 0."""
    starts = [start] + [0] * (len(parts) - 1)
    return [
        f"{first}{''.join(f'{op}{digit}' for op, digit in part)}" for first, part in zip(starts, parts, strict=True)
    ]


def training_tasks(level: int) -> Arithmetic:
    """Return the questions of a level that are not held out."""
    return Arithmetic(level=level, split="train")
