"""What a task is and what a task family gives a workflow: items, words and grading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from srpo_envs.errors import RecordError
from srpo_envs.parsing import Malformed, Parsed
from srpo_envs.records import frozen_json

if TYPE_CHECKING:
    from srpo_envs.evidence import ShownEvidence
    from srpo_envs.schedule import Reply


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its gold answer.

    Example:
        ``Task(task_id="arithmetic-l2/train/17", question="Compute 3*7-4 ...", gold="7")``
    """

    task_id: str
    """Stable across runs and machines."""
    question: str
    """What the team is asked."""
    gold: Any
    """The answer the family grades against, as JSON values."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Source, level and whatever else a report may want."""

    @property
    def golds(self) -> tuple[str, ...]:
        """The answers that count as right, as texts: a gold that is one value, or each of several."""
        return tuple(map(str, self.gold)) if isinstance(self.gold, (list, tuple)) else (str(self.gold),)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON values."""
        return {
            "task_id": self.task_id,
            "question": self.question,
            "gold": frozen_json(self.gold),
            "info": frozen_json(self.info),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Task:
        """Return the task of `to_dict`.

        Raises:
            RecordError: a field is missing or unknown.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise RecordError(f"not a task: {error}; expected task_id, question, gold and info") from error


class TaskFamily(Protocol):
    """Items, prompts and grading of one kind of question; a workflow works with any family."""

    @property
    def name(self) -> str:
        """Name in ids and reports."""
        ...

    @property
    def num_tasks(self) -> int:
        """Number of tasks in this split."""
        ...

    def task(self, index: int) -> Task:
        """Return task `index`, 0 <= index < num_tasks; the same one every time."""
        ...

    def prompt(self, role: str) -> str:
        """Return the template a role of this family is told."""
        ...

    @property
    def parse_answer(self) -> Callable[[str], Parsed | Malformed]:
        """Reader of a response that must hold an answer."""
        ...

    def stop(self, role: str) -> tuple[str, ...]:
        """Return the texts that end a response of this role."""
        ...

    def max_new_tokens(self, role: str) -> int:
        """Return the response limit of this role, in the policy's tokens."""
        ...

    def grade(self, task: Task, answer: Any) -> float:
        """Return the team reward of a parsed answer, in [0, 1].

        Raises:
            SurroundingsError: the grader is unavailable.
        """
        ...

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Write the team's committed replies as the context part of a prompt; no replies give the empty context."""
        ...


class SearchTaskFamily(TaskFamily, Protocol):
    """A task family whose questions are answered from retrieved passages."""

    @property
    def default_retriever(self) -> str:
        """Name of the search engine that holds what its questions ask for, for `srpo_envs.search.open_retriever`."""
        ...

    def render_evidence(self, evidence: ShownEvidence) -> str:
        """Write what was found so far as the history part of a prompt; never called before the first turn is over."""
        ...
