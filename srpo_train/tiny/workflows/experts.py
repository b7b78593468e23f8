r"""Experts of Eval-Opt, voting and orchestrator-workers: what they do in any task, and what a task must tell them.

`WorkflowCast` decides whom a response answers and what was committed before it; a subclass knows one kind of task: how
it is worked out, judged, split and put together. A curriculum over another task is such a subclass, its habits and
``play=functools.partial(play_workflow, make_tasks, MyCast)``.
"""

from __future__ import annotations

import abc
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from srpo_envs.core import SetEnv
from srpo_envs.parsing import CORRECT, INCORRECT
from srpo_envs.records import Event, Member
from srpo_envs.tasks.base import Task, TaskFamily
from srpo_envs.workflows.eval_opt import EvalOpt
from srpo_envs.workflows.orchestrator_workers import OrchestratorWorkers
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.voting import Voting
from srpo_train.tiny.experts import Cast, Example, Expert, Habits, play_examples

GENERATORS = (1, 2, 3, 4, 5)
"""Numbers of voting generators the examples cover."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowHabits(Habits):
    """How often an expert errs, whatever the task; a task adds its own kinds."""

    bare_guess: float = 0.0
    """Whoever answers the question does so at random, without working."""
    bare_part: float = 0.0
    """The same for workers and synthesizers, several of whom must be right at once."""
    random_verdict: float = 0.0
    """An evaluator decides by the toss of a coin, without working."""
    random_choice: float = 0.0
    """An aggregator selects any draft."""
    random_plan: float = 0.0
    """An orchestrator cuts the question anywhere, or not at all."""


WorkflowHabitsT = TypeVar("WorkflowHabitsT", bound=WorkflowHabits)


class WorkflowCast(Cast[WorkflowHabitsT], Generic[WorkflowHabitsT]):
    """Experts who know the right answer and remember drafts, subtasks and results; subclasses know one kind of task."""

    def __init__(self, env: SetEnv, task: Task) -> None:
        super().__init__(env, task)
        self._drafts: list[str | None] = []  # one answer per draft, None for a malformed one
        self._subtasks: Sequence[str] = ()
        self._results: list[str | None] = []  # one text per worker, None for a malformed one

    # --- what a task knows ----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def solve(self, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        """Write an answer to the question."""

    @abc.abstractmethod
    def judge(self, draft: str | None, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        """Write a verdict that is worked out."""

    @abc.abstractmethod
    def split(self, rng: np.random.Generator, *, is_careful: bool) -> Sequence[str]:
        """Return subtasks whose results can be put together, or any cut of the question."""

    @abc.abstractmethod
    def work(self, subtask: str, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        """Write the result of a subtask."""

    @abc.abstractmethod
    def combine(self, results: Sequence[str | None], habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        """Write the answer that follows from the results."""

    # --- what a workflow asks for ---------------------------------------------------------------------------------

    def parts(self) -> Mapping[str, Expert[WorkflowHabitsT]]:
        """Return the expert of each role."""
        return {
            "solver": self._solve,
            "generator": self._solve,
            "evaluator": self._evaluate,
            "aggregator": self._select,
            "orchestrator": self._plan,
            "worker": self._work,
            "synthesizer": self._synthesize,
        }

    def watch(self, event: Event) -> None:
        """Remember what was committed."""
        for member in event.members:
            if member.role == "generator":
                self._drafts.append(member.parsed)
            elif member.role == "orchestrator":
                self._subtasks = member.parsed or ()
            elif member.role == "worker":
                self._results.append(member.parsed)

    def _solve(self, member: Member, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        return self.solve(habits, rng)

    def _evaluate(self, member: Member, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        if rng.random() < habits.random_verdict:
            return write_verdict(rng.random() < 0.5)
        return self.judge(self._drafts[-1], habits, rng)

    def _select(self, member: Member, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        number = self._favourite
        if rng.random() < habits.random_choice:
            number = int(rng.integers(1, len(self._drafts) + 1))
        return f"\\boxed{{{number}}}"

    def _plan(self, member: Member, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        subtasks = self.split(rng, is_careful=rng.random() >= habits.random_plan)
        return "\n".join(f"SUBTASK {number}: {subtask}" for number, subtask in enumerate(subtasks, start=1))

    def _work(self, member: Member, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        return self.work(self._subtasks[member.index], habits, rng)

    def _synthesize(self, member: Member, habits: WorkflowHabitsT, rng: np.random.Generator) -> str:
        return self.combine(self._results, habits, rng)

    @property
    def _favourite(self) -> int:
        """Number of the first draft of the most frequent answer; the right answer wins a tie, which serves the team."""
        counts = Counter(draft for draft in self._drafts if draft is not None)
        if not counts:
            return 1
        best = max(counts, key=lambda answer: (counts[answer], answer == self.task.gold))
        return self._drafts.index(best) + 1


def write_verdict(is_correct: bool) -> str:
    """Return an evaluator's verdict."""
    return f"\\boxed{{{CORRECT if is_correct else INCORRECT}}}"


# --- where the examples come from ---------------------------------------------------------------------------------


def sample_workflow(tasks: TaskFamily, rng: np.random.Generator) -> SetEnv:
    """Return a random workflow over these tasks, with one to three rounds or one to five generators."""
    kind = rng.choice(["single_agent", "eval_opt", "voting", "orchestrator_workers"], p=[0.1, 0.3, 0.2, 0.4])
    if kind == "eval_opt":
        return EvalOpt(tasks, max_rounds=int(rng.integers(1, 4)))
    if kind == "voting":
        return Voting(tasks, num_generators=int(rng.choice(GENERATORS)))
    return OrchestratorWorkers(tasks) if kind == "orchestrator_workers" else SingleAgent(tasks)


def with_random_company(habits: WorkflowHabitsT, rng: np.random.Generator) -> WorkflowHabitsT:
    """Return `habits` with random shares of guesses and verdicts, so that a policy meets drafts of every quality."""
    changed: dict[str, Any] = {
        "bare_guess": float(rng.uniform(0.0, 0.8)),
        "random_verdict": float(rng.uniform(0.2, 1.0)),
        "malformed": 0.02,
    }
    return dataclasses.replace(habits, **changed)


def play_workflow(
    make_tasks: Callable[[int], TaskFamily],
    hire: Callable[[SetEnv, Task], Cast[WorkflowHabitsT]],
    level: int,
    habits: WorkflowHabitsT,
    rng: np.random.Generator,
) -> Iterator[Example]:
    """Play one training episode in a random workflow and in random company.

    Args:
        make_tasks: Returns the training tasks of a level.
        hire: The cast that knows them.
        level: Of the task.
        habits: Of the responses to imitate.
        rng: Source of all choices.
    """
    env = sample_workflow(make_tasks(level), rng)
    company = with_random_company(habits, rng)
    index = int(rng.integers(env.tasks.num_tasks))
    return play_examples(env, hire, task_index=index, rng=rng, target=habits, committed=company)
