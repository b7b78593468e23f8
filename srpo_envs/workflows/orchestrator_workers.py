"""Orchestrator-workers, a workflow of the workflow study: a plan, workers who each see one subtask, a synthesis."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.parsing import parse_subtasks, parse_text
from srpo_envs.schedule import Ask, Reply, Role, Schedule
from srpo_envs.tasks.base import Task, TaskFamily


class OrchestratorWorkers(SetEnv):
    """An orchestrator splits the task, workers do the parts without seeing the whole, a synthesizer answers.

    Events of one episode (K = cardinality)::

        orchestrator K=1 -> worker K=1 to max_subtasks, as planned -> synthesizer K=1 -> graded
                         -> malformed plan: the end, no answer

    Args:
        tasks: The task family; its prompt of a worker takes ``$context`` and leaves out the question.
        max_subtasks: Most subtasks of a plan; workers there are.
        limits: Passed to `SetEnv`: ``max_events``, ``invalid_penalty``, ``max_new_tokens``.
    """

    def __init__(self, tasks: TaskFamily, *, max_subtasks: int = 3, **limits: Any) -> None:
        if max_subtasks < 1:
            raise ValueError(f"max_subtasks: expected at least 1, got {max_subtasks}")
        self.max_subtasks = max_subtasks
        plan = functools.partial(parse_subtasks, most=max_subtasks)
        roles = (
            Role.of(tasks, "orchestrator", parse=plan),
            Role.of(tasks, "worker", parse=parse_text, seats=max_subtasks),
            Role.of(tasks, "synthesizer", parse=tasks.parse_answer),
        )
        super().__init__(tasks, roles, **limits)

    def schedule(self, task: Task) -> Schedule:
        """A plan, its parts at once, and their synthesis; nobody works on a malformed plan."""
        (plan,) = yield self.ask(
            "orchestrator", state="question only", context=self.context(), max_subtasks=str(self.max_subtasks)
        )
        if not plan.is_valid:
            return self.outcome(plan, stopped_by="malformed_plan", metrics=_metrics(task, plan, ()))
        results = yield functools.reduce(operator.add, [self._part(plan, seat) for seat in range(len(plan.parsed))])
        (final,) = yield self.ask("synthesizer", state=_count(results, "result"), context=self.context(plan, results))
        return self.outcome(final, stopped_by="synthesis", metrics=_metrics(task, plan, results))

    def _part(self, plan: Reply, seat: int) -> Ask:
        """One worker with one subtask: all it sees of the plan, and nothing of the question."""
        subtask = dataclasses.replace(plan, parsed=plan.parsed[seat : seat + 1])
        return self.ask("worker", seats=(seat,), state=_count(plan.parsed, "subtask"), context=self.context(subtask))


def _metrics(task: Task, plan: Reply, results: Sequence[Reply]) -> dict[str, float]:
    """How the plan was cut; a plan that hands on the whole question has divided nothing."""
    subtasks = plan.parsed if plan.is_valid else ()
    return {
        "malformed_plan": not plan.is_valid,
        "num_subtasks": len(subtasks),
        "num_distinct_subtasks": len({_plain(subtask) for subtask in subtasks}),
        "question_handed_on": any(_plain(task.question) in _plain(subtask) for subtask in subtasks),
        "num_malformed_results": sum(not result.is_valid for result in results),
    }


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _count(items: Sequence[Any], noun: str) -> str:
    return f"one {noun}" if len(items) == 1 else f"{len(items)} {noun}s"
