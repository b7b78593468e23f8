"""What a team has committed, as the context part of a prompt: drafts, verdicts, subtasks and results under headings.

A member's words stand in quotation lines, so that text which imitates a heading, a verdict or another member's draft
stays visibly its author's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from srpo_envs.schedule import Reply
from srpo_envs.tasks.quoting import quote, without_thinking

NOTHING_COMMITTED = "Nothing is committed yet."
"""The team context of a first event."""

JUDGES = ("verifier", "evaluator")
"""Roles whose replies are verdicts on the drafts before them."""
PLANNER, WORKER = "orchestrator", "worker"
"""Roles whose replies are a list of subtasks, and the result of one; those of all other roles are drafts."""


def write_team_context(replies: Sequence[Reply], answer: Callable[[Reply], str] | None = None) -> str:
    """Write replies in the order they were committed, each under a heading that names its author.

    Args:
        replies: What is committed.
        answer: Writes the answer of a valid draft, where answers alone are shown; otherwise drafts are shown in full,
            without their thinking.
    """
    sections: list[str] = []
    num_drafts = num_results = 0
    for reply in replies:
        if reply.role in JUDGES:
            verdict = reply.parsed if reply.is_valid else _malformed(reply)
            sections.append(_quoted(f"Verdict ({reply.agent}), {verdict}", without_thinking(reply.text)))
        elif reply.role == PLANNER:
            sections += _subtasks(reply)
        elif reply.role == WORKER:
            num_results += 1
            sections.append(_work(f"Result {num_results}", reply, None))
        else:
            num_drafts += 1
            sections.append(_work(f"Draft {num_drafts}", reply, answer))
    return "\n\n".join(sections) or NOTHING_COMMITTED


def _subtasks(plan: Reply) -> list[str]:
    """A section for each subtask; the only one needs no number."""
    numbers = [""] if len(plan.parsed) == 1 else [f" {number}" for number in range(1, len(plan.parsed) + 1)]
    return [
        _quoted(f"Subtask{number} ({plan.agent})", subtask)
        for number, subtask in zip(numbers, plan.parsed, strict=True)
    ]


def _work(title: str, reply: Reply, answer: Callable[[Reply], str] | None) -> str:
    heading = f"{title} ({reply.agent})" + ("" if reply.is_valid else f", {_malformed(reply)}")
    if answer is None:
        return _quoted(heading, without_thinking(reply.text))
    return _quoted(heading, answer(reply)) if reply.is_valid else f"{heading}."


def _malformed(reply: Reply) -> str:
    return f"malformed: {reply.malformed_reason}"


def _quoted(heading: str, words: str) -> str:
    return f"{heading}:\n{quote(words)}"
