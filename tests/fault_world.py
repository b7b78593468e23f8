"""Worlds whose steps wait at gates and whose graders are lost at work, so that tests kill things at a known moment.

A test names a folder in the environment, which processes of a cluster inherit, and puts files there: what is to happen
is a file, and so is what has happened. Nothing of it is in the recipe, so that runs with and without faults compare.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.grading import MathGrader
from srpo_envs.records import MemberOutput, StepResult
from srpo_envs.registry import Pairing, register
from srpo_envs.sandbox.shared import open_sandbox
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.tiny_code import TinyCode, _run_on_hidden_inputs
from srpo_envs.workflows.search import Search
from srpo_envs.workflows.solver_verifier import SolverVerifier

ENV_ID = "fault_world:srpo_tests/Gated-v0"
CODE_ENV_ID = "fault_world:srpo_tests/GatedCode-v0"
SEARCH_ENV_ID = "fault_world:srpo_tests/GatedSearch-v0"
FOLDER = "SRPO_TEST_GATES"
_LOSE_GRADER = "lose-grader"
_LOST = "lost"


class Gates:
    """The test's side: a folder of gates.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def close(self, episode_id: str) -> None:
        """Let the first step of an episode wait from now on."""
        _gate(self.folder, episode_id).touch()

    def pid_at(self, episode_id: str) -> int | None:
        """Return the process that waits there, None while nobody does."""
        arrived = _arrived(self.folder, episode_id)
        return int(arrived.read_text()) if arrived.exists() else None

    def open(self, episode_id: str) -> None:
        """Let it go on."""
        _gate(self.folder, episode_id).unlink()

    def lose_grader(self) -> None:
        """Have a grading process killed as soon as one that has worked before is at work again."""
        (self.folder / _LOSE_GRADER).touch()

    @property
    def is_grader_lost(self) -> bool:
        """Whether that has happened."""
        return (self.folder / _LOST).exists()


def _gate(folder: Path, episode_id: str) -> Path:
    return folder / f"{episode_id.replace('/', '-')}.closed"


def _arrived(folder: Path, episode_id: str) -> Path:
    return _gate(folder, episode_id).with_suffix(".pid")


class _AtGates(SetEnv):
    """Waits before its steps where a gate is closed."""

    def step(self, outputs: Iterable[MemberOutput]) -> StepResult:
        """Wait, and move."""
        if name := os.environ.get(FOLDER):
            folder, episode_id = Path(name), self.episode.episode_id
            if _gate(folder, episode_id).exists():
                partial = _arrived(folder, episode_id).with_suffix(".partial")
                partial.write_text(str(os.getpid()))
                partial.replace(_arrived(folder, episode_id))
            while _gate(folder, episode_id).exists():
                time.sleep(0.005)
        return super().step(outputs)


class Gated(_AtGates, SolverVerifier):
    """Solvers and a verifier at gates."""


class GatedSearch(_AtGates, Search):
    """Searchers at gates."""


_grader = MathGrader(num_workers=1, limit_s=120.0)


class GradedElsewhere(Arithmetic):
    """Arithmetic whose grades need a grading worker: without one that answers, nothing is right."""

    def grade(self, task: Task, answer: Any) -> float:
        """Return 1.0 for an answer equal to the gold where the worker knows a law of trigonometry."""
        pool, grade = _grader._pool, super().grade(task, answer)
        if grade:  # the loss would show: a right answer would be wrong
            _lose(pool._idle, pool._busy, lambda worker: worker.process.pid)
        return grade * _grader.is_equivalent(r"\sin(2x)", r"2\sin(x)\cos(x)")


class GradedInBox(TinyCode):
    """Programs whose sandbox is lost at work."""

    def grade(self, task: Task, answer: Any) -> float:
        """Return what the programs earn."""
        _run_on_hidden_inputs.cache_clear()  # every program is run
        sandbox = open_sandbox(self.isolation)
        _lose(sandbox._idle, sandbox._busy, lambda keeper: keeper._process.pid)
        return super().grade(task, answer)


def _lose(idle: list[Any], busy: set[Any], pid_of: Callable[[Any], int]) -> None:
    """Stop the process that gets the next request, and kill it once it has it."""
    name = os.environ.get(FOLDER)
    if name is None or not idle or not (Path(name) / _LOSE_GRADER).exists():
        return
    process = idle[-1]
    (Path(name) / _LOSE_GRADER).unlink()
    os.kill(pid_of(process), signal.SIGSTOP)

    def kill() -> None:
        while process not in busy:
            time.sleep(0.001)
        os.kill(pid_of(process), signal.SIGKILL)
        (Path(name) / _LOST).touch()

    threading.Thread(target=kill, daemon=True).start()


register("srpo_tests/Gated-v0", Pairing("fault_world:Gated", "fault_world:GradedElsewhere"))
register("srpo_tests/GatedCode-v0", Pairing("srpo_envs.workflows.single_agent:SingleAgent", "fault_world:GradedInBox"))
register("srpo_tests/GatedSearch-v0", Pairing("fault_world:GatedSearch", "srpo_envs.tasks.village:Village"))
