"""Single-agent search in the manner of Search-R1: one agent thinks, then either searches or answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from srpo_envs.evidence import Evidence, Turn
from srpo_envs.parsing import parse_step
from srpo_envs.schedule import Role, Schedule
from srpo_envs.tasks.base import SearchTaskFamily, Task
from srpo_envs.workflows.search_env import SearchEnv


class SearchAgent(SearchEnv):
    """One agent searches and answers by itself: every event has K = 1.

    It has `max_turns` searches, or fewer where the budget says so, and one more step to answer in; a query in that last
    step, or a malformed text, ends the episode as truncated. A malformed step before it is spent.

    Args:
        tasks: The task family.
        search: Passed to `SearchEnv`: ``retriever``, ``top_k``, ``max_turns``, ``max_evidence_chars``, ``query_cost``
            and its limits.
    """

    def __init__(self, tasks: SearchTaskFamily, **search: Any) -> None:
        super().__init__(tasks, (Role.of(tasks, "agent", parse=parse_step),), **search)

    @property
    def turn_limit(self) -> int:
        """Most searches of an episode, so that the budget has room for one more step to answer in."""
        budget = self.budget
        steps = [limit - 1 for limit in (budget.turns, budget.calls) if limit is not None]
        searches = [] if budget.tool_calls is None else [budget.tool_calls]
        return min([self.max_turns, *steps, *searches])

    def schedule(self, task: Task) -> Schedule:
        """Think and search, or think and answer, until there is an answer."""
        evidence = Evidence()
        while True:
            self.begin_turn()
            event_type = "continuation" if evidence.turns else "agent"
            (step,) = yield self.ask_about("agent", evidence, event_type=event_type, num_steps=self.turn_limit + 1)
            action, text = step.parsed if step.is_valid else ("", "")
            if action == "answer":
                return self.conclude(task, evidence, dataclasses.replace(step, parsed=text), "answer")
            if len(evidence.turns) == self.turn_limit:
                return self.conclude(task, evidence, None, "max_turns")
            turn = Turn(results=self.look_up([(step.agent, text)])) if action else Turn(malformed=(step,))
            evidence = evidence.plus(turn)
