"""Mathematics problems from published sets, from files of your own, or from a small sample shipped with the package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from srpo_envs.errors import DatasetError, UnreadableGoldError
from srpo_envs.grading import check_gold, is_equivalent
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.prompting import load_prompt
from srpo_envs.schedule import Reply
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.loading import Choice, LoadedTasks, kept_info
from srpo_envs.tasks.math_formats import MATH_SETS, OWN_SET, MathSet, read_golds, read_question
from srpo_envs.tasks.rows import Row
from srpo_envs.tasks.team_context import write_team_context

_MAX_NEW_TOKENS = {"verifier": 2048, "evaluator": 2048, "selector": 2048, "orchestrator": 2048, "router": 512}
_SOLUTION_TOKENS = 4096
_KEPT_FIELDS = ("id", "unique_id", "source", "data_source", "subject", "level", "url")


class MathProblems(LoadedTasks[MathSet]):
    r"""A set of mathematics problems as a task family.

    Args:
        dataset: A name of `MATH_SETS`; ``sample``, the problems shipped with the package; ``custom`` for a file of
            your own; or any hub id (``owner/name``).
        path: A local ``.json``, ``.jsonl`` or ``.parquet`` file holding the set, instead of the hub.
        split: A split of the hub's; or, with `holdout`, ``train`` or ``test``.
        holdout: Share of the questions, chosen by a digest of each question's text, that is the test part; the rest is
            the train part. The parts never overlap, whatever the order or the length of the file.
        config: Configuration of a hub id.
        context: What a member sees of committed drafts: ``full`` texts without thinking, or their boxed ``answers``
            only. Verdicts always come with their feedback.
        skip_unreadable: Leave out rows whose gold answer cannot be read, and count them in `report`.
        drop_duplicates: Keep only the first of equal questions. Otherwise all are kept and named in `report`.
        size: Take the first `size` problems.

    Raises:
        UnknownIdError: an unknown set.
        UnreadableGoldError: a gold answer that no grader can read; names file, row, value and remedy.
        DatasetError: a missing file, a damaged row, or nothing left.
        MissingExtraError: a hub id without `datasets`, or Parquet without pyarrow.
        ValueError: arguments that do not go together.
    """

    parse_answer = staticmethod(parse_boxed_answer)

    def __init__(
        self,
        dataset: str = "sample",
        *,
        path: str | os.PathLike[str] | None = None,
        split: str | None = None,
        holdout: float = 0.0,
        config: str | None = None,
        context: Literal["full", "answers"] = "full",
        skip_unreadable: bool = False,
        drop_duplicates: bool = False,
        size: int | None = None,
    ) -> None:
        if context not in ("full", "answers"):
            raise ValueError(f"context: expected 'full' or 'answers', got {context!r}")
        choice = Choice(
            dataset=dataset,
            path=path,
            split=split,
            holdout=holdout,
            config=config,
            skip_unreadable=skip_unreadable,
            drop_duplicates=drop_duplicates,
            size=size,
        )
        super().__init__("math", choice, MATH_SETS, OWN_SET, _read_problem)
        self.context = context

    def prompt(self, role: str) -> str:
        """Return a role's template in the three parts of appendix B: observation, team context, role.

        A worker sees its part of a plan and not the problem, so its template has the role's part only.
        """
        return load_prompt("math", *(() if role == "worker" else ("observation", "team_context")), role)

    def stop(self, role: str) -> tuple[str, ...]:
        """Return no stop text: responses end with the policy's own end-of-sequence token."""
        return ()

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that leaves room for a worked solution, or for a judgement of one."""
        return _MAX_NEW_TOKENS.get(role, _SOLUTION_TOKENS)

    def grade(self, task: Task, answer: Any) -> float:
        """Return 1.0 for an answer equivalent to the gold or to one of several golds, else 0.0."""
        golds = (task.gold,) if isinstance(task.gold, str) else task.gold
        return float(any(is_equivalent(gold, str(answer)) for gold in golds))

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Write what the team committed, see `write_team_context`."""
        return write_team_context(replies, None if self.context == "full" else _boxed)


def _boxed(draft: Reply) -> str:
    return f"\\boxed{{{draft.parsed}}}"


def _read_problem(row: Row, spec: MathSet) -> Task:
    question = read_question(row, spec.question)
    try:
        golds = read_golds(row, spec.answer, spec.list_means)
        for gold in golds:
            check_gold(gold)
    except DatasetError as error:
        raise UnreadableGoldError(str(error)) from error
    return Task("", question, golds[0] if len(golds) == 1 else golds, kept_info(row, _KEPT_FIELDS))
