"""What families of generated questions share: levels, sizes, and a split that nothing can move."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Literal

Split = Literal["train", "test"]

_TEST_SHARE = 10  # one question in ten is held out
_NUM_TRAIN, _NUM_TEST = 8192, 256


class GeneratedTasks:
    """A list of questions made from their index, with train and test questions that never overlap.

    The split of a question is decided by a digest of its text (`split_of`), so no seed, level or size can move it.

    Args:
        levels: Levels there are.
        level: One of them.
        split: ``train`` or ``test``.
        size: Number of tasks; indices beyond the number of distinct questions repeat questions.
        seed: Another seed gives another list of questions.

    Raises:
        ValueError: an unknown level or split, or a size below 1.
    """

    family: str
    """First part of names and task ids."""

    def __init__(self, levels: Collection[int], level: int, split: Split, size: int | None, seed: int) -> None:
        if level not in levels:
            raise ValueError(f"level: expected one of {sorted(levels)}, got {level!r}")
        if split not in ("train", "test"):
            raise ValueError(f"split: expected 'train' or 'test', got {split!r}")
        self.level = level
        self.split = split
        self.num_tasks = size if size is not None else (_NUM_TRAIN if split == "train" else _NUM_TEST)
        if self.num_tasks < 1:
            raise ValueError(f"size: expected at least 1, got {size}")
        self.seed = seed
        self.name = list_name(self.family, level, split)

    def stop(self, role: str) -> tuple[str, ...]:
        """Return no stop text: responses end with the policy's own end-of-sequence token."""
        return ()


def split_of(question: str) -> Split:
    """Return the split a question belongs to, from a digest of its text."""
    digest = hashlib.blake2b(question.encode("utf-8"), digest_size=4).digest()
    return "test" if int.from_bytes(digest, "big") % _TEST_SHARE == 0 else "train"


def list_name(family: str, level: int, split: Split) -> str:
    """Return the name of a list of questions, with which their ids begin."""
    return f"{family}-l{level}-{split}"
