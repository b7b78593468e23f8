"""From a published set to tasks: which rows, under which ids, in which part; the same for every family.

A family says how a row of its sets is read. Everything else a published set needs is here: opening it by its name, a
file or a hub id, leaving out rows no answer could be right for, ids that do not depend on the order of the file,
duplicates, and a holdout that never overlaps with its train part.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from srpo_envs.errors import DatasetError, UnknownIdError, UnreadableGoldError, near_miss
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.rows import Row, read_hub_rows, read_rows

logger = logging.getLogger(__name__)

CUSTOM = "custom"
"""The name of a set of your own, given by the path of a file."""

_ID_LETTERS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSet:
    """Where a set is found."""

    hub_id: str = ""
    """Repository on the hub; empty for a set that is no hub set."""
    config: str | None = None
    """Configuration of that repository."""
    splits: tuple[str, ...] = ()
    """Splits it has; the first is taken when none is asked for."""
    shipped: str = ""
    """File under ``srpo_envs/tasks/data`` for a set that comes with the package; ``{split}`` stands for the split."""


SetT = TypeVar("SetT", bound=PublishedSet)
RowReader = Callable[[Row, SetT], Task]
"""Makes a task, still without an id, of a row; raises `UnreadableGoldError` where only the gold answer is unusable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which tasks of which set."""

    dataset: str
    """Name of a set, ``custom``, or a hub id ``owner/name``."""
    path: str | os.PathLike[str] | None = None
    """A local file that holds the set."""
    split: str | None = None
    """A split of the set's; or, with `holdout`, ``train`` or ``test``."""
    holdout: float = 0.0
    """Share of the questions that is the test part."""
    config: str | None = None
    """Configuration on the hub, instead of the set's own."""
    skip_unreadable: bool = False
    """Leave out rows whose gold answer cannot be used."""
    drop_duplicates: bool = False
    """Keep only the first of equal questions."""
    size: int | None = None
    """Take the first `size` tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """What loading a set met, for people and for tests."""

    num_rows: int
    """Rows read, before holdout and skipping."""
    skipped: tuple[str, ...]
    """One message for each row left out because its gold answer cannot be read."""
    duplicates: tuple[tuple[str, str], ...]
    """``(task_id, task_id of the first)`` for each question that was there before."""


class LoadedTasks(Generic[SetT]):
    """The tasks of one choice; a family adds words and grading.

    Args:
        family: First part of the name in reports.
        choice: Which tasks of which set.
        sets: The family's sets, by name.
        own_set: Stands for the custom set and for hub ids that have no name.
        read_row: The family's reader of a row.

    Raises:
        UnknownIdError: an unknown set.
        UnreadableGoldError: a gold answer that cannot be used; names file, row, value and remedy.
        DatasetError: a missing file, a damaged row, or nothing left.
        MissingExtraError: a hub id without `datasets`, or Parquet without pyarrow.
        ValueError: arguments that do not go together.
    """

    report: LoadReport
    """What loading met."""

    def __init__(
        self, family: str, choice: Choice, sets: Mapping[str, SetT], own_set: SetT, read_row: RowReader[SetT]
    ) -> None:
        self.name = "-".join([family, choice.dataset, *([choice.split] if choice.split else [])])
        spec = _find_set(family, choice.dataset, sets, own_set)
        _check_choice(choice, spec)
        self._tasks, self.report = _load(choice, spec, read_row, _stamp(choice.path))

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """Return task `index`.

        Raises:
            IndexError: there is no such task.
        """
        if not 0 <= index < len(self._tasks):
            raise IndexError(f"{self.name!r}: task {index} is outside 0..{len(self._tasks) - 1}")
        return self._tasks[index]


def first_present(row: Mapping[str, object], fields: Sequence[str], what: str) -> str:
    """Return the first of several field names that a row has a value for.

    Raises:
        DatasetError: it has none of them.
    """
    for name in fields:
        if row.get(name) is not None:
            return name
    raise DatasetError(f"no {what}: expected one of the fields {', '.join(fields)}, the row has {', '.join(row)}")


def kept_info(row: Mapping[str, object], fields: Sequence[str]) -> dict[str, str | int | float]:
    """Return those of a row's fields that are plain values, for `Task.info`."""
    return {name: value for name in fields if isinstance(value := row.get(name), (str, int, float))}


# --- opening ------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _load(
    choice: Choice, spec: SetT, read_row: RowReader[SetT], stamp: tuple[int, ...]
) -> tuple[tuple[Task, ...], LoadReport]:
    """Return the tasks of a choice and what loading met; environments of one choice share them.

    A collector makes hundreds of environments, and each would read the same file anew. `stamp` tells a file that has
    changed meanwhile.
    """
    source, rows = _open_set(choice, spec)
    tasks, skipped = _read_tasks(rows, lambda row: read_row(row, spec), source, choice.skip_unreadable)
    tasks, duplicates = _name_tasks(tasks, choice.dataset, choice.drop_duplicates)
    if choice.holdout:
        tasks = [task for task in tasks if _is_held_out(task.question, choice.holdout) == (choice.split == "test")]
    if not tasks:
        raise DatasetError(f"{source}: no task left of {len(rows)} rows; check split, holdout and the skipped rows")
    if duplicates:
        logger.warning("%s: %d questions occur more than once", source, len(duplicates))
    if skipped:
        logger.warning("%s: %d rows skipped, first: %s", source, len(skipped), skipped[0])
    report = LoadReport(num_rows=len(rows), skipped=skipped, duplicates=duplicates)
    return tuple(tasks[: choice.size]), report


def _stamp(path: str | os.PathLike[str] | None) -> tuple[int, ...]:
    """Return what changes when a file does; nothing for what is no local file."""
    if path is None or not os.path.exists(path):
        return ()
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _find_set(family: str, dataset: str, sets: Mapping[str, SetT], own_set: SetT) -> SetT:
    if dataset in sets:
        return sets[dataset]
    if dataset == CUSTOM or "/" in dataset:
        return own_set
    raise UnknownIdError(f"no {family} set {dataset!r}{near_miss(dataset, [*sets, CUSTOM])}")


def _check_choice(choice: Choice, spec: PublishedSet) -> None:
    """Refuse combinations that mean nothing, or under which a train and a test part could overlap."""
    split, holdout = choice.split, choice.holdout
    if choice.size is not None and choice.size < 1:
        raise ValueError(f"size: expected at least 1, got {choice.size}")
    if not 0.0 <= holdout < 1.0:
        raise ValueError(f"holdout: expected a share in [0, 1), got {holdout}")
    if holdout and split not in ("train", "test"):
        raise ValueError(f"holdout={holdout}: say which part with split='train' or split='test', got {split!r}")
    if choice.dataset == CUSTOM and choice.path is None:
        raise ValueError(f"dataset={CUSTOM!r} needs the path of a file")
    if spec.shipped and choice.path is not None:
        raise ValueError(f"a path needs the name of the set it holds, or dataset={CUSTOM!r}")
    if spec.shipped and spec.splits and holdout:
        raise ValueError(f"{choice.dataset!r} has parts of its own, {' and '.join(spec.splits)}: leave out holdout=")
    if split and not holdout and (choice.path is not None or (spec.shipped and not spec.splits)):
        raise ValueError(
            f"split={split!r}: one file has no splits of its own; give holdout=, the share of its test part"
        )


def _open_set(choice: Choice, spec: PublishedSet) -> tuple[str, list[Row]]:
    """Return a set's name for messages and its rows."""
    if choice.path is not None:
        return str(choice.path), read_rows(choice.path)
    split = None if choice.holdout else choice.split
    split = split or (spec.splits[0] if spec.splits else None)
    if split and spec.splits and split not in spec.splits:
        hint = "" if spec.shipped else "; holdout= can divide it"
        raise ValueError(
            f"{choice.dataset!r} has the {'splits' if len(spec.splits) > 1 else 'split'} {' and '.join(spec.splits)}, "
            f"not {split!r}{hint}"
        )
    if spec.shipped:
        return f"the shipped {choice.dataset}" + (f" ({split})" if split else ""), _read_shipped(spec.shipped, split)
    hub_id = spec.hub_id or choice.dataset
    if split is None:
        raise ValueError(f"{hub_id!r}: say which split of the hub's to read")
    return f"{hub_id} ({split})", read_hub_rows(hub_id, choice.config or spec.config, split)


def _read_shipped(name: str, split: str | None) -> list[Row]:
    folder = importlib.resources.files("srpo_envs") / "tasks" / "data"
    with importlib.resources.as_file(folder / name.format(split=split)) as file:
        return read_rows(file)


# --- reading and naming -------------------------------------------------------------------------------------------


def _read_tasks(
    rows: Sequence[Row], read_row: Callable[[Row], Task], source: str, skip_unreadable: bool
) -> tuple[list[Task], tuple[str, ...]]:
    """Return unnamed tasks and a message for each skipped row."""
    tasks: list[Task] = []
    skipped: list[str] = []
    for number, row in enumerate(rows, start=1):
        try:
            task = read_row(row)
        except UnreadableGoldError as error:
            message = f"{source}, row {number}: {error}"
            if not skip_unreadable:
                raise UnreadableGoldError(
                    f"{message}; mend the row, or leave such rows out with skip_unreadable=True"
                ) from error
            skipped.append(message)
        except DatasetError as error:
            raise DatasetError(f"{source}, row {number}: {error}") from None
        else:
            tasks.append(replace(task, info={**task.info, "row": number}))
    return tasks, tuple(skipped)


def _name_tasks(
    tasks: Sequence[Task], dataset: str, drop_duplicates: bool
) -> tuple[list[Task], tuple[tuple[str, str], ...]]:
    """Give each task an id made of its question, and say which questions are repeated."""
    seen: dict[str, int] = {}
    named: list[Task] = []
    duplicates: list[tuple[str, str]] = []
    for task in tasks:
        first_id = f"{dataset}/{_digest_of(task.question)[:_ID_LETTERS]}"
        seen[first_id] = seen.get(first_id, 0) + 1
        task_id = first_id if seen[first_id] == 1 else f"{first_id}-{seen[first_id]}"
        if task_id != first_id:
            duplicates.append((task_id, first_id))
            if drop_duplicates:
                continue
        named.append(replace(task, task_id=task_id))
    return named, tuple(duplicates)


def _digest_of(question: str) -> str:
    """Digest of a question, the same for texts that differ in white space only."""
    return hashlib.blake2b(" ".join(question.split()).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _is_held_out(question: str, share: float) -> bool:
    """Whether a question belongs to the test part, decided by its digest alone."""
    return int(_digest_of(question)[-8:], 16) < share * 2**32
