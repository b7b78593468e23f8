"""Evaluator-optimizer, a workflow of the workflow study: a draft, a verdict, and refinements until it is Correct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.parsing import CORRECT, parse_boxed_verdict
from srpo_envs.schedule import Reply, Role, Schedule
from srpo_envs.tasks.base import Task, TaskFamily


class EvalOpt(SetEnv):
    """A generator drafts, an evaluator judges, and the generator refines what was not judged correct.

    Events of one episode (every K = 1)::

        generator -> evaluator -> Correct:                graded
                               -> Incorrect or malformed: refinement -> evaluator ...

    Args:
        tasks: The task family.
        max_rounds: Most verdicts of an episode, each on a draft of its own. The newest draft is the team's answer,
            whatever the last verdict says of it.
        limits: Passed to `SetEnv`: ``max_events``, ``invalid_penalty``, ``max_new_tokens``.
    """

    def __init__(self, tasks: TaskFamily, *, max_rounds: int = 3, **limits: Any) -> None:
        if max_rounds < 1:
            raise ValueError(f"max_rounds: expected at least 1, got {max_rounds}")
        self.max_rounds = max_rounds
        roles = (
            Role.of(tasks, "generator", parse=tasks.parse_answer),
            Role.of(tasks, "evaluator", parse=parse_boxed_verdict),
        )
        super().__init__(tasks, roles, **limits)

    def schedule(self, task: Task) -> Schedule:
        """Rounds of drafting and judging; both roles see everything said so far, as in the study."""
        drafts: list[Reply] = []
        verdicts: list[Reply] = []
        said: list[Reply] = []
        state = "question only"
        for number in range(1, self.max_rounds + 1):
            self.begin_turn()
            kind = "refinement" if drafts else "generator"
            (draft,) = yield self.ask("generator", event_type=kind, state=state, context=self.context(said))
            drafts.append(draft)
            said.append(draft)
            (verdict,) = yield self.ask("evaluator", state=f"draft {number}", context=self.context(said))
            verdicts.append(verdict)
            said.append(verdict)
            if verdict.parsed == CORRECT:
                break
            state = (
                f"draft {number}, judged {verdict.parsed}" if verdict.is_valid else f"draft {number}, verdict malformed"
            )
        is_accepted = verdicts[-1].parsed == CORRECT
        metrics = _metrics(drafts, verdicts, [self.score(draft) >= 1.0 for draft in drafts])
        return self.outcome(drafts[-1], stopped_by="verdict" if is_accepted else "max_rounds", metrics=metrics)


def _metrics(drafts: Sequence[Reply], verdicts: Sequence[Reply], is_right: Sequence[bool]) -> dict[str, float]:
    """How drafts and verdicts went together; a malformed verdict is right about nothing."""
    agreements = [
        verdict.is_valid and (verdict.parsed == CORRECT) == right
        for verdict, right in zip(verdicts, is_right, strict=True)
    ]
    return {
        "num_rounds": len(verdicts),
        "num_malformed_drafts": sum(not draft.is_valid for draft in drafts),
        "num_malformed_verdicts": sum(not verdict.is_valid for verdict in verdicts),
        "accepted": verdicts[-1].parsed == CORRECT,
        "verdict_accuracy": sum(agreements) / len(agreements),
        "first_correct": is_right[0],
        "mended": is_right[-1] and not is_right[0],
        "spoilt": any(is_right) and not is_right[-1],
    }
