r"""Embedded programming: a short sentence to turn into a function, graded by running it on hidden inputs.

``Write f(x): plus 3, times 2. f(4)=14`` asks for a program such as::

    def f(x):
        x += 3
        x *= 2
        return x

Small enough for a model of a hundred thousand parameters, and endless: tasks are generated from their index, so nothing
is downloaded. Programs run in the sandbox like any others. All tasks share their hidden inputs, so that what a program
does is found once for all of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from srpo_envs.grading.code import same_value
from srpo_envs.parsing import parse_code_block
from srpo_envs.prompting import load_prompt
from srpo_envs.sandbox import Isolation, Limits
from srpo_envs.sandbox.shared import open_sandbox
from srpo_envs.schedule import Reply
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.generated import GeneratedTasks, Split, list_name, split_of
from srpo_envs.tasks.team_context import JUDGES, PLANNER

LEVELS: dict[int, int] = {1: 1, 2: 2, 3: 3, 4: 5}
"""Steps of a function, by level."""

WORDS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "plus": ("+", operator.add),
    "minus": ("-", operator.sub),
    "times": ("*", operator.mul),
    "over": ("//", operator.floordiv),
    "mod": ("%", operator.mod),
}
"""By the word of a step: its Python operator, and what it does."""

HIDDEN_INPUTS = (0, 1, 3, 6, 8, 11, 17, 25)
"""What programs are tried on."""
SHOWN_INPUT = 4
"""What the example in the question is about."""

Step = tuple[str, int]
"""A word of `WORDS` and a digit."""

_FUNCTION = "f"
_LIMITS = Limits(cpu_s=2.0, wall_s=10.0, memory_bytes=256 << 20)
_PROGRAM_TOKENS, _STEP_TOKENS = 26, 8  # of the embedded policy: a program of one step, and each further step
_MAX_NEW_TOKENS = {"verifier": 8, "aggregator": 10, "router": 16, "selector": 10}


class TinyCode(GeneratedTasks):
    """Generated functions of a level, with train and test questions that never overlap.

    Args:
        level: Length of the functions, see `LEVELS`.
        split: ``train`` or ``test``.
        size: Number of tasks; indices beyond the number of distinct questions of a level repeat questions.
        seed: Another seed gives another list of questions.
        isolation: How the sandbox shuts programs in: ``namespaces``, or knowingly the weaker ``rlimits``.

    Raises:
        ValueError: an unknown level or split, or a size below 1.
    """

    family = "tiny-code"
    parse_answer = staticmethod(parse_code_block)

    def __init__(
        self,
        level: int = 2,
        split: Split = "train",
        size: int | None = None,
        seed: int = 0,
        isolation: Isolation = "namespaces",
    ) -> None:
        super().__init__(LEVELS, level, split, size, seed)
        self.isolation = isolation

    def task(self, index: int) -> Task:
        """Return task `index`, 0 <= index < num_tasks."""
        return _make_task(self.level, self.split, self.seed, index)

    def prompt(self, role: str) -> str:
        """Return the short template of a role."""
        return load_prompt("tiny_code", role)

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that fits a well-formed response of this level."""
        return _MAX_NEW_TOKENS.get(role, _PROGRAM_TOKENS + (LEVELS[self.level] - 1) * _STEP_TOKENS)

    def grade(self, task: Task, answer: Any) -> float:
        """Return 1.0 for a program that is right on every hidden input, else 0.0.

        Raises:
            SandboxError: programs cannot be run safely.
        """
        forms = _run_on_hidden_inputs(str(answer), self.isolation)
        expected = [apply_steps(task.info["steps"], value) for value in HIDDEN_INPUTS]
        return float(
            len(forms) == len(expected)
            and all(same_value(form, wanted) for form, wanted in zip(forms, expected, strict=True))
        )

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Write each draft and each result as ``[i] text``, each verdict as its word and each subtask as it is.

        Every reply has a line of its own.
        """
        lines: list[str] = []
        num_numbered = 0
        for reply in replies:
            if reply.role == PLANNER:
                lines += reply.parsed
            elif reply.role in JUDGES:
                lines.append(_parsed(reply))
            else:
                num_numbered += 1
                lines.append(f"[{num_numbered}] {_parsed(reply)}")
        return "".join("\n" + " ".join(line.split()) for line in lines)


def _parsed(reply: Reply) -> str:
    return str(reply.parsed) if reply.is_valid else "malformed"


# --- what a function is -------------------------------------------------------------------------------------------


def apply_steps(steps: Sequence[Step], value: int) -> int:
    """Return what a function makes of a value."""
    for word, digit in steps:
        value = WORDS[word][1](value, digit)
    return value


def write_steps(steps: Sequence[Step]) -> str:
    """Return steps in words: ``plus 3, times 2``."""
    return ", ".join(f"{word} {digit}" for word, digit in steps)


def write_question(steps: Sequence[Step]) -> str:
    """Return the question of a function."""
    return f"Write f(x): {write_steps(steps)}. f({SHOWN_INPUT})={apply_steps(steps, SHOWN_INPUT)}"


def write_statements(steps: Sequence[Step]) -> list[str]:
    """Return the statement of each step, such as ``x += 3``."""
    return [f"x {WORDS[word][0]}= {digit}" for word, digit in steps]


def write_program(steps: Sequence[Step]) -> str:
    """Return the function in Python."""
    return "\n    ".join(["def f(x):", *write_statements(steps), "return x"])


def draw_step(rng: np.random.Generator) -> Step:
    """Return any word with a digit from 2 to 9: less would do nothing, or fail."""
    return str(rng.choice(list(WORDS))), int(rng.integers(2, 10))


# A rollout group asks for its task once per member, each in an environment of its own.
@functools.lru_cache(maxsize=16_384)
def _make_task(level: int, split: Split, seed: int, index: int) -> Task:
    """Draw from the index's own stream until a function belongs to the split."""
    rng = np.random.default_rng([seed, level, split == "test", index])
    while True:
        steps = [draw_step(rng) for _ in range(LEVELS[level])]
        question = write_question(steps)
        if split_of(question) == split:
            task_id = f"{list_name(TinyCode.family, level, split)}/{index}"
            return Task(task_id, question, write_program(steps), {"steps": steps})


@functools.lru_cache(maxsize=16_384)
def _run_on_hidden_inputs(source: str, isolation: Isolation) -> tuple[Any, ...]:
    """Return the encoded value of each call up to the first that fails.

    The calls share a box. Policies this small write the same programs again and again, for many tasks.
    """
    forms: list[Any] = []
    with open_sandbox(isolation).session(source, _LIMITS) as session:
        for value in HIDDEN_INPUTS:
            run = session.call(_FUNCTION, (value,))
            if run.status != "ok":
                break
            forms.append(run.value)
    return tuple(forms)
