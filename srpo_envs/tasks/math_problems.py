"""Mathematics problems from published sets, from files of your own, or from a small sample shipped with the package."""

from __future__ import annotations

import hashlib
import importlib.resources
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from srpo_envs.errors import DatasetError, UnknownIdError, UnreadableGoldError, near_miss
from srpo_envs.grading import check_gold, is_equivalent
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.prompting import load_prompt
from srpo_envs.schedule import Reply
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.math_formats import MATH_SETS, OWN_SET, MathSet, read_golds, read_question
from srpo_envs.tasks.rows import Row, read_hub_rows, read_rows

logger = logging.getLogger(__name__)

NOTHING_COMMITTED = "Nothing is committed yet."
"""The team context of a first event."""

_MAX_NEW_TOKENS = {"solver": 4096, "verifier": 2048, "aggregator": 4096, "router": 512}
_OTHER_ROLE_TOKENS = 2048
_ID_LETTERS = 12
_LINE_BREAK = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CHAT_MARK = re.compile(r"<(?=\||/?s>|(?:start|end)_of_turn>|[be]os>)|\[(?=/?INST\])")
_KEPT_FIELDS = ("id", "unique_id", "source", "data_source", "subject", "level", "url")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """What loading a set met, for people and for tests."""

    num_rows: int
    """Rows read, before holdout and skipping."""
    skipped: tuple[str, ...]
    """One message for each row left out because its gold answer cannot be read."""
    duplicates: tuple[tuple[str, str], ...]
    """``(task_id, task_id of the first)`` for each question that was there before."""


class MathProblems:
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
        if size is not None and size < 1:
            raise ValueError(f"size: expected at least 1, got {size}")
        _check_split(dataset, path, split, holdout)
        self.name = "-".join(["math", dataset, *([split] if split else [])])
        self.context = context
        source, rows, spec = _open_set(dataset, path, None if holdout else split, config)
        problems, skipped = _read_problems(rows, spec, source, skip_unreadable)
        problems, duplicates = _name_problems(problems, dataset, drop_duplicates)
        if holdout:
            problems = [task for task in problems if _is_held_out(task.question, holdout) == (split == "test")]
        self._tasks = problems[:size]
        self.report = LoadReport(num_rows=len(rows), skipped=skipped, duplicates=duplicates)
        if not self._tasks:
            raise DatasetError(
                f"{source}: no problem left of {len(rows)} rows; check split, holdout and the skipped rows"
            )
        if duplicates:
            logger.warning("%s: %d questions occur more than once", source, len(duplicates))
        if skipped:
            logger.warning("%s: %d rows skipped, first: %s", source, len(skipped), skipped[0])

    @property
    def num_tasks(self) -> int:
        """Number of problems."""
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """Return problem `index`."""
        if not 0 <= index < len(self._tasks):
            raise IndexError(f"{self.name!r}: task {index} is outside 0..{len(self._tasks) - 1}")
        return self._tasks[index]

    def prompt(self, role: str) -> str:
        """Return a role's template in the three parts of appendix B: observation, team context, role."""
        return load_prompt("math", "observation", "team_context", role)

    def stop(self, role: str) -> tuple[str, ...]:
        """Return no stop text: responses end with the policy's own end-of-sequence token."""
        return ()

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that leaves room for a worked solution."""
        return _MAX_NEW_TOKENS.get(role, _OTHER_ROLE_TOKENS)

    def grade(self, task: Task, answer: Any) -> float:
        """Return 1.0 for an answer equivalent to the gold or to one of several golds, else 0.0."""
        golds = (task.gold,) if isinstance(task.gold, str) else task.gold
        return float(any(is_equivalent(gold, str(answer)) for gold in golds))

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Write drafts and verdicts in the order they were committed, each under a heading that names its author.

        A member's words stand in quotation lines, so that text which imitates a heading, a verdict or another
        member's draft stays visibly its author's.
        """
        if not replies:
            return NOTHING_COMMITTED
        sections = []
        num_drafts = 0
        for reply in replies:
            if reply.role == "verifier":
                sections.append(_verdict(reply))
            else:
                num_drafts += 1
                sections.append(self._draft(num_drafts, reply))
        return "\n\n".join(sections)

    def _draft(self, number: int, reply: Reply) -> str:
        heading = f"Draft {number} ({reply.agent})"
        if not reply.is_valid:
            heading += f", malformed: {reply.malformed_reason}"
        if self.context == "full":
            return f"{heading}:\n{quote(without_thinking(reply.text))}"
        boxed = f"\\boxed{{{reply.parsed}}}"
        return f"{heading}:\n{quote(boxed)}" if reply.is_valid else f"{heading}."


def _verdict(reply: Reply) -> str:
    verdict = reply.parsed if reply.is_valid else f"malformed: {reply.malformed_reason}"
    return f"Verdict ({reply.agent}), {verdict}:\n{quote(without_thinking(reply.text))}"


def without_thinking(text: str) -> str:
    """Return a response without its thinking, finished or not; thinking is private and never committed."""
    visible = text.rpartition("</think>")[2]
    return visible.partition("<think>")[0].strip()


def quote(text: str) -> str:
    """Return a member's words with ``> `` before every line, whatever line break they use.

    The spelling of chat-template marks (``<|im_start|>``, ``<end_of_turn>``, ``[INST]``) is broken up, because a
    tokenizer would read them in a prompt as the end of the user's turn.
    """
    lines = _LINE_BREAK.split(_CHAT_MARK.sub(r"\g<0> ", text))
    return "\n".join(f"> {line}".rstrip() for line in lines)


# --- loading ------------------------------------------------------------------------------------------------------


def _check_split(dataset: str, path: str | os.PathLike[str] | None, split: str | None, holdout: float) -> None:
    """Refuse combinations under which a train and a test part could overlap."""
    if not 0.0 <= holdout < 1.0:
        raise ValueError(f"holdout: expected a share in [0, 1), got {holdout}")
    if holdout and split not in ("train", "test"):
        raise ValueError(f"holdout={holdout}: say which part with split='train' or split='test', got {split!r}")
    if dataset == "custom" and path is None:
        raise ValueError("dataset='custom' needs the path of a file")
    if dataset == "sample" and path is not None:
        raise ValueError("a path needs the name of the set it holds, or dataset='custom'")
    if split and not holdout and (path is not None or dataset == "sample"):
        raise ValueError(
            f"split={split!r}: one file has no splits of its own; give holdout=, the share of its test part"
        )


def _open_set(
    dataset: str, path: str | os.PathLike[str] | None, split: str | None, config: str | None
) -> tuple[str, list[Row], MathSet]:
    """Return a set's name for messages, its rows and the names of its fields."""
    if dataset == "sample":
        file = importlib.resources.files("srpo_envs") / "tasks" / "data" / "math_sample.jsonl"
        with importlib.resources.as_file(file) as sample:
            return "the shipped sample", read_rows(sample), OWN_SET
    if dataset in MATH_SETS:
        spec = MATH_SETS[dataset]
    elif dataset == "custom" or "/" in dataset:
        spec = OWN_SET
    else:
        raise UnknownIdError(f"no mathematics set {dataset!r}{near_miss(dataset, [*MATH_SETS, 'sample', 'custom'])}")
    if path is not None:
        return str(path), read_rows(path), spec
    hub_id = spec.hub_id or dataset
    chosen = split or (spec.splits[0] if spec.splits else None)
    if chosen is None:
        raise ValueError(f"{hub_id!r}: say which split of the hub's to read")
    if spec.splits and chosen not in spec.splits:
        raise ValueError(
            f"{dataset!r} has the split {' and '.join(spec.splits)}, not {chosen!r}; holdout= can divide it"
        )
    return f"{hub_id} ({chosen})", read_hub_rows(hub_id, config or spec.config, chosen), spec


def _read_problems(
    rows: Sequence[Row], spec: MathSet, source: str, skip_unreadable: bool
) -> tuple[list[Task], tuple[str, ...]]:
    """Return unnamed tasks and a message for each skipped row."""
    problems: list[Task] = []
    skipped: list[str] = []
    for number, row in enumerate(rows, start=1):
        where = f"{source}, row {number}"
        try:
            question = read_question(row, spec.question)
        except DatasetError as error:
            raise DatasetError(f"{where}: {error}") from None
        try:
            golds = _checked_golds(row, spec)
        except DatasetError as error:
            message = f"{where}: {error}"
            if not skip_unreadable:
                raise UnreadableGoldError(
                    f"{message}; mend the row, or leave such rows out with skip_unreadable=True"
                ) from error
            skipped.append(message)
            continue
        info = {name: row[name] for name in _KEPT_FIELDS if isinstance(row.get(name), (str, int, float))}
        problems.append(Task("", question, golds[0] if len(golds) == 1 else golds, {**info, "row": number}))
    return problems, tuple(skipped)


def _checked_golds(row: Row, spec: MathSet) -> tuple[str, ...]:
    golds = read_golds(row, spec.answer, spec.list_means)
    for gold in golds:
        check_gold(gold)
    return golds


def _name_problems(
    problems: Sequence[Task], dataset: str, drop_duplicates: bool
) -> tuple[list[Task], tuple[tuple[str, str], ...]]:
    """Give each task an id made of its question, and say which questions are repeated."""
    seen: dict[str, int] = {}
    named: list[Task] = []
    duplicates: list[tuple[str, str]] = []
    for task in problems:
        first_id = f"{dataset}/{_digest_of(task.question)[:_ID_LETTERS]}"
        seen[first_id] = seen.get(first_id, 0) + 1
        task_id = first_id if seen[first_id] == 1 else f"{first_id}-{seen[first_id]}"
        if task_id != first_id:
            duplicates.append((task_id, first_id))
            if drop_duplicates:
                continue
        named.append(Task(task_id, task.question, task.gold, task.info))
    return named, tuple(duplicates)


def _digest_of(question: str) -> str:
    """Digest of a question, the same for texts that differ in white space only."""
    return hashlib.blake2b(" ".join(question.split()).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _is_held_out(question: str, share: float) -> bool:
    """Whether a question belongs to the test part, decided by its digest alone."""
    return int(_digest_of(question)[-8:], 16) < share * 2**32
