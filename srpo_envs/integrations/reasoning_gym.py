r"""reasoning-gym: its procedural data sets as a task family, graded by each set's own scoring function.

Importing this module registers a pair of the family with every workflow that answers questions without a search::

    env = srpo_envs.make("srpo_envs.integrations.reasoning_gym:reasoning_gym/Voting-v0", dataset="leg_counting")

The module is part of the id, so a stored episode finds it again. An item is made anew from the data set's name,
arguments and index whenever it is graded; nothing of it has to be stored. Data sets that pay partial credit keep it: an
answer is `correct` when it earns all of it. Composite data sets are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from srpo_envs.errors import DatasetError, UnknownIdError, near_miss
from srpo_envs.integrations import missing
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.prompting import load_prompt
from srpo_envs.registry import Pairing, register
from srpo_envs.schedule import Reply
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.generated import Split, split_of
from srpo_envs.tasks.team_context import write_team_context
from srpo_envs.workflows.registered import WORKFLOWS

try:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
except ImportError as error:
    raise missing("reasoning-gym") from error

_MAX_NEW_TOKENS = 2048
_ITEMS_PER_TASK: dict[Split, int] = {"train": 2, "test": 20}
"""How many items are looked through for each task of a split: nine questions in ten are for training."""


class ReasoningGym:
    """A data set of reasoning-gym, with train and test questions that never overlap.

    Args:
        dataset: Its name, such as ``leg_counting``.
        config: Arguments of the data set, such as ``{"max_animals": 4}``.
        split: ``train`` or ``test``; a digest of its text decides which a question belongs to.
        size: Number of tasks.
        seed: Another seed gives another list of questions.

    Raises:
        UnknownIdError: reasoning-gym has no such data set.
        ValueError: an unknown split, a size below 1, or arguments the data set refuses.
    """

    parse_answer = staticmethod(parse_boxed_answer)

    def __init__(
        self,
        dataset: str = "chain_sum",
        *,
        config: Mapping[str, Any] | None = None,
        split: Split = "train",
        size: int = 512,
        seed: int = 0,
    ) -> None:
        if dataset not in DATASETS:
            raise UnknownIdError(f"reasoning-gym has no data set {dataset!r}{near_miss(dataset, DATASETS)}")
        if split not in ("train", "test") or size < 1:
            raise ValueError(f"expected split 'train' or 'test' and size >= 1, got {split!r} and {size}")
        num_items = size * _ITEMS_PER_TASK[split]
        try:
            self._items = reasoning_gym.create_dataset(dataset, **{**(config or {}), "seed": seed, "size": num_items})
        except (AssertionError, TypeError) as error:  # what its own checks of arguments raise
            raise ValueError(f"reasoning-gym's {dataset!r} refuses {dict(config or {})}: {error}") from error
        self.split = split
        self.num_tasks = size
        self.name = f"reasoning-gym/{dataset}-{split}"
        self._seed = seed
        self._indices: list[int] = []
        """Indices of the data set's items that belong to this split, as far as they were needed."""

    def task(self, index: int) -> Task:
        """Return task `index`, 0 <= index < num_tasks.

        Raises:
            DatasetError: the data set has too few different questions to fill this split.
        """
        while len(self._indices) <= index:
            self._indices.append(self._next_of_split())
        number = self._indices[index]
        item = self._items[number]
        return Task(f"{self.name}/{self._seed}/{number}", item["question"], item["answer"], {"index": number})

    def _next_of_split(self) -> int:
        start = self._indices[-1] + 1 if self._indices else 0
        for number in range(start, len(self._items)):
            if split_of(self._items[number]["question"]) == self.split:
                return number
        raise DatasetError(
            f"{self.name}: {len(self._items)} items hold only {len(self._indices)} of this split; "
            "the data set has few different questions, ask for a smaller size or other arguments"
        )

    def prompt(self, role: str) -> str:
        """Return a role's template: the puzzle, what the team committed, and the role; a worker sees its part only."""
        if role == "worker":
            return load_prompt("math", role)
        return "\n\n".join((load_prompt("reasoning", "observation"), load_prompt("math", "team_context", role)))

    def stop(self, role: str) -> tuple[str, ...]:
        """Return no stop text: responses end with the policy's own end-of-sequence token."""
        return ()

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that leaves room for reasoning."""
        return _MAX_NEW_TOKENS

    def grade(self, task: Task, answer: Any) -> float:
        """Return the data set's own score of an answer, 0 to 1."""
        return float(self._items.score_answer(str(answer), self._items[task.info["index"]]))

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Write what the team committed, see `write_team_context`."""
        return write_team_context(replies)


def _register() -> None:
    for name, (workflow, fixed, families) in WORKFLOWS.items():
        if "Math" in families:
            register(f"reasoning_gym/{name}-v0", Pairing(workflow, f"{__name__}:ReasoningGym", fixed))


_register()
