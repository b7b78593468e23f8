r"""Embedded arithmetic: chains of single-digit steps, worked from left to right, modulo ten.

``Compute 3*7-4+8 from left to right, mod 10.`` has the gold answer 5. Small enough for a model of a hundred thousand
parameters, checkable at a glance, and endless: tasks are generated from their index, so nothing is downloaded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from srpo_envs.grading import is_equivalent
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.prompting import load_prompt
from srpo_envs.schedule import Reply
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.generated import GeneratedTasks, Split, list_name, split_of
from srpo_envs.tasks.team_context import JUDGES, PLANNER, WORKER

LEVELS: dict[int, tuple[int, int]] = {1: (1, 2), 2: (2, 4), 3: (3, 6), 4: (5, 8)}
"""Fewest and most steps of a chain, by level."""

_OPERATORS = "+-*"
_MAX_NEW_TOKENS = {
    "solver": 40,
    "verifier": 8,
    "aggregator": 10,
    "router": 16,
    "generator": 40,
    "evaluator": 40,
    "selector": 10,
    "orchestrator": 40,
    "worker": 40,
    "synthesizer": 40,
}
_WORKS_CHAINS = ("solver", "generator", "evaluator", "orchestrator", "worker")
"""Roles whose responses grow with the chain."""
_STEP_TOKENS = 4  # a further step such as *7=1, in tokens of the embedded policy


class Arithmetic(GeneratedTasks):
    """Generated chains of a level, with train and test questions that never overlap.

    The split of a question is decided by a digest of its text, so no seed, level or size can move it.

    Args:
        level: Length of the chains, see `LEVELS`.
        split: ``train`` or ``test``.
        size: Number of tasks; indices beyond the number of distinct questions of a level repeat questions.
        seed: Another seed gives another list of questions.

    Raises:
        ValueError: an unknown level or split, or a size below 1.
    """

    family = "arithmetic"
    parse_answer = staticmethod(parse_boxed_answer)

    def __init__(self, level: int = 2, split: Split = "train", size: int | None = None, seed: int = 0) -> None:
        super().__init__(LEVELS, level, split, size, seed)

    def task(self, index: int) -> Task:
        """Return task `index`, 0 <= index < num_tasks."""
        return _make_task(self.level, self.split, self.seed, index)

    def prompt(self, role: str) -> str:
        """Return the short template of a role."""
        return load_prompt("arithmetic", role)

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that fits a well-formed response of this level."""
        extra = max(0, LEVELS[self.level][1] - LEVELS[2][1]) * _STEP_TOKENS if role in _WORKS_CHAINS else 0
        return _MAX_NEW_TOKENS[role] + extra

    def grade(self, task: Task, answer: Any) -> float:
        """Return 1.0 for an answer equal to the gold, else 0.0."""
        return float(is_equivalent(task.gold, str(answer)))

    def render_context(self, replies: Sequence[Reply]) -> str:
        r"""Write each draft and each result as ``[i] \boxed{d}``, each verdict as its word and each subtask as it is.

        Only answers are committed here, and every reply has a line of its own.
        """
        lines: list[str] = []
        num_answers = 0
        for reply in replies:
            if reply.role == PLANNER:
                lines += reply.parsed
            elif reply.role in JUDGES:
                lines.append(reply.parsed if reply.is_valid else "malformed")
            else:
                num_answers += 1
                lines.append(f"[{num_answers}] {_answer(reply)}")
        return "".join("\n" + " ".join(line.split()) for line in lines)


def _answer(reply: Reply) -> str:
    if not reply.is_valid:
        return "malformed"
    return str(reply.parsed) if reply.role == WORKER else f"\\boxed{{{reply.parsed}}}"


def write_question(start: int, steps: Sequence[tuple[str, int]]) -> str:
    """Return the question of a chain."""
    return f"Compute {start}{''.join(f'{op}{digit}' for op, digit in steps)} from left to right, mod 10."


def partial_results(start: int, steps: Sequence[tuple[str, int]]) -> list[int]:
    """Return the value modulo ten after each step; the last is the answer."""
    results = []
    value = start
    for op, digit in steps:
        value = {"+": value + digit, "-": value - digit, "*": value * digit}[op] % 10
        results.append(value)
    return results


def write_partial_results(start: int, steps: Sequence[tuple[str, int]], results: Sequence[int]) -> str:
    """Return a worked chain, such as ``3*7=1-4=7``: each step followed by what it gave."""
    return str(start) + "".join(f"{op}{digit}={result}" for (op, digit), result in zip(steps, results, strict=True))


# A rollout group asks for its task once per member, each in an environment of its own.
@functools.lru_cache(maxsize=16_384)
def _make_task(level: int, split: Split, seed: int, index: int) -> Task:
    """Draw from the index's own stream until a chain belongs to the split."""
    rng = np.random.default_rng([seed, level, split == "test", index])
    while True:
        start, steps = _draw_chain(rng, *LEVELS[level])
        question = write_question(start, steps)
        if split_of(question) == split:
            info = {"start": start, "steps": steps}
            return Task(
                f"{list_name(Arithmetic.family, level, split)}/{index}",
                question,
                str(partial_results(start, steps)[-1]),
                info,
            )


def _draw_chain(rng: np.random.Generator, fewest: int, most: int) -> tuple[int, list[tuple[str, int]]]:
    length = int(rng.integers(fewest, most + 1))
    operators = rng.integers(len(_OPERATORS), size=length)
    digits = rng.integers(1, 10, size=length + 1)
    return int(digits[0]), [(_OPERATORS[op], int(digit)) for op, digit in zip(operators, digits[1:], strict=True)]
