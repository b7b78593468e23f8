"""The workflows over generated functions: how a program is judged, split into parts and put together again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from srpo_envs.tasks.base import Task
from srpo_envs.tasks.tiny_code import WORDS, Step, TinyCode, draw_step, write_program, write_statements, write_steps
from srpo_train.tiny.workflows.experts import WorkflowCast, WorkflowHabits, write_verdict

_WORDED_STEP = re.compile(rf"({'|'.join(WORDS)}) (\d)")
_STATEMENT = re.compile(r"x (\+|-|\*|//|%)= (\d)")
_WORD_OF = {sign: word for word, (sign, _) in WORDS.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeHabits(WorkflowHabits):
    """How often an expert of a workflow over functions errs."""

    wrong_step: float = 0.0
    """A step becomes any other one."""
    swapped: float = 0.0
    """The steps are written in the reverse order; drawn once for a response."""


CLEAN = CodeHabits()
"""No mistakes."""


class CodeWorkflowCast(WorkflowCast[CodeHabits]):
    """Experts who turn steps into statements."""

    def solve(self, habits: CodeHabits, rng: np.random.Generator) -> str:
        """Write the program; a guess has the right length."""
        if rng.random() < habits.bare_guess:
            return fence(write_program([draw_step(rng) for _ in self._steps]))
        return fence(write_program(spoil(self._steps, habits, rng)))

    def judge(self, draft: str | None, habits: CodeHabits, rng: np.random.Generator) -> str:
        """Write the statements down and compare."""
        steps = spoil(self._steps, habits, rng)
        return f"<think>{' '.join(write_statements(steps))}</think>{write_verdict(draft == write_program(steps))}"

    def split(self, rng: np.random.Generator, *, is_careful: bool) -> Sequence[str]:
        """Give each worker a step, the last all that are left; or cut anywhere."""
        most = getattr(self.env, "max_subtasks", 1)
        cuts = list(range(1, min(most, len(self._steps))))
        if not is_careful:
            cuts = [cut for cut in cuts if rng.random() < 0.5]
        edges = [0, *cuts, len(self._steps)]
        return [write_steps(self._steps[start:end]) for start, end in pairwise(edges)]

    def work(self, subtask: str, habits: CodeHabits, rng: np.random.Generator) -> str:
        """Write the statements of a part; without one that has steps, guess."""
        steps: list[Step] = [(word, int(digit)) for word, digit in _WORDED_STEP.findall(subtask)]
        if not steps or rng.random() < habits.bare_part:
            steps = [draw_step(rng) for _ in steps or "?"]
        return "; ".join(write_statements(spoil(steps, habits, rng)))

    def combine(self, results: Sequence[str | None], habits: CodeHabits, rng: np.random.Generator) -> str:
        """Put the statements of the results together; without any, guess."""
        found = _STATEMENT.findall(" ".join(text or "" for text in results))
        steps: list[Step] = [(_WORD_OF[sign], int(digit)) for sign, digit in found]
        if not steps or rng.random() < habits.bare_part:
            steps = [draw_step(rng) for _ in steps or "?"]
        return fence(write_program(spoil(steps, habits, rng)))

    @property
    def _steps(self) -> list[Step]:
        steps: list[Step] = self.task.info["steps"]
        return steps


def spoil(steps: Sequence[Step], habits: CodeHabits, rng: np.random.Generator) -> list[Step]:
    """Return the steps an expert with these habits writes."""
    ordered = reversed(steps) if rng.random() < habits.swapped else steps
    return [draw_step(rng) if rng.random() < habits.wrong_step else step for step in ordered]


def fence(program: str) -> str:
    """Return a program in its block."""
    return f"```python\n{program}\n```"


class _ReadNotRun(TinyCode):
    """Training questions for experts, whose programs are right when they are the gold: nothing needs to run."""

    def grade(self, task: Task, answer: Any) -> float:
        """Return 1.0 for the gold program, else 0.0."""
        return float(answer == task.gold)


def training_tasks(level: int) -> TinyCode:
    """Return the questions of a level that are not held out."""
    return _ReadNotRun(level=level, split="train")
