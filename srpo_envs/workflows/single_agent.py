"""Single agent: one role, one event, K = 1; the singleton boundary of the set-valued action."""

from __future__ import annotations

from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.schedule import Role, Schedule
from srpo_envs.tasks.base import Task, TaskFamily


class SingleAgent(SetEnv):
    """One solver answers and its answer is graded.

    Args:
        tasks: The task family.
        limits: Passed to `SetEnv`: ``max_events``, ``invalid_penalty``, ``max_new_tokens``, ``budget``.
    """

    def __init__(self, tasks: TaskFamily, **limits: Any) -> None:
        super().__init__(tasks, roles=(Role.of(tasks, "solver", parse=tasks.parse_answer),), **limits)

    def schedule(self, task: Task) -> Schedule:
        """Solver (K = 1) -> graded."""
        (final,) = yield self.ask("solver", state="question only", context=self.context())
        return self.outcome(final)
