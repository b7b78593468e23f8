"""Voting, a workflow of the workflow study: parallel drafts, and an aggregator that selects one of them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.parsing import parse_selection
from srpo_envs.schedule import Reply, Role, Schedule
from srpo_envs.tasks.base import Task, TaskFamily


class Voting(SetEnv):
    """Generators draft from one pre-action state, and the aggregator names the draft that is the team's answer.

    Events of one episode (K = cardinality)::

        generator K=num_generators -> aggregator K=1 -> the selected draft is graded

    A selection that names no draft leaves the team without an answer; a selected draft that is malformed is its answer
    and earns nothing.

    Args:
        tasks: The task family; the aggregator gets its words for a ``selector``.
        num_generators: K of the draft event.
        limits: Passed to `SetEnv`: ``max_events``, ``invalid_penalty``, ``max_new_tokens``.
    """

    def __init__(self, tasks: TaskFamily, *, num_generators: int = 3, **limits: Any) -> None:
        if num_generators < 1:
            raise ValueError(f"num_generators: expected at least 1, got {num_generators}")
        self.num_generators = num_generators
        selection = functools.partial(parse_selection, num_drafts=num_generators)
        roles = (
            Role.of(tasks, "generator", parse=tasks.parse_answer, seats=num_generators),
            Role.of(tasks, "aggregator", parse=selection, job="selector"),
        )
        super().__init__(tasks, roles, **limits)

    def schedule(self, task: Task) -> Schedule:
        """Drafts at once, then the selection of one."""
        drafts = yield self.ask("generator", self.num_generators, state="question only", context=self.context())
        (selection,) = yield self.ask("aggregator", state=_describe(drafts), context=self.context(drafts))
        metrics = _metrics(drafts, selection, [self.score(draft) >= 1.0 for draft in drafts])
        final = drafts[selection.parsed - 1] if selection.is_valid else selection
        return self.outcome(final, selected=selection.parsed, metrics=metrics)


def _metrics(drafts: Sequence[Reply], selection: Reply, is_right: Sequence[bool]) -> dict[str, float]:
    """What the drafts held and what the selection made of it; its accuracy needs a right draft to be found."""
    answers = Counter(draft.parsed for draft in drafts if draft.is_valid)
    favourite = answers.most_common(1)[0][0] if answers else None
    metrics = {
        "num_malformed_drafts": sum(not draft.is_valid for draft in drafts),
        "num_distinct_answers": len(answers),
        "draft_accuracy": sum(is_right) / len(is_right),
        "majority_correct": any(
            right and draft.parsed == favourite for draft, right in zip(drafts, is_right, strict=True)
        ),
        "oracle_correct": any(is_right),
        "malformed_selection": not selection.is_valid,
    }
    if any(is_right):
        metrics["selection_accuracy"] = selection.is_valid and is_right[selection.parsed - 1]
    return metrics


def _describe(drafts: Sequence[Reply]) -> str:
    return "one draft" if len(drafts) == 1 else f"{len(drafts)} competing drafts"
