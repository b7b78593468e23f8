"""The finished runs of the cells of a sweep or a study, whatever is read of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from srpo_train.reporting.tables import Score
from srpo_train.sweep.cells import Cell, list_run_dirs, read_cells


class FinishedRun(Protocol):
    """What one finished run came to."""

    @property
    def seed(self) -> int:
        """Its seed."""
        ...


R = TypeVar("R", bound=FinishedRun)
R_co = TypeVar("R_co", bound=FinishedRun, covariant=True)


@dataclass(frozen=True, kw_only=True)
class CellResult(Generic[R_co]):
    """A cell and its finished runs."""

    cell: Cell
    """What was trained."""
    runs: tuple[R_co, ...]
    """By seed."""

    def score(self, of: Callable[[R_co], float]) -> Score:
        """Return mean and sample standard deviation over the seeds; no deviation for a single one."""
        return Score.over([of(run) for run in self.runs])


C = TypeVar("C", bound=CellResult[FinishedRun])


def read_finished(out: str | Path, read_run: Callable[[Path], R | None]) -> list[CellResult[R]]:
    """Return the cells of a directory with their finished runs, in their order.

    Args:
        out: Directory of a sweep or a study.
        read_run: Reads what the run of a directory came to; None when it is not finished.

    Raises:
        RecordError: it is not such a directory.
    """
    return [
        CellResult(
            cell=cell,
            runs=tuple(run for folder in list_run_dirs(out, cell) if (run := read_run(folder)) is not None),
        )
        for cell in read_cells(out)
    ]


def by_group(results: Iterable[C]) -> dict[str, list[C]]:
    """Return the results under the groups of their cells, in the order of first appearance."""
    groups: dict[str, list[C]] = {}
    for result in results:
        groups.setdefault(result.cell.group, []).append(result)
    return groups


def note_on_missing(results: Sequence[CellResult[R]], seeds: Sequence[int]) -> list[str]:
    """Return a sentence on cells that lack runs of some seeds, and one on those that have none, as there are any."""
    short = [f"{result.cell.label}: {len(result.runs)}" for result in results if 0 < len(result.runs) < len(seeds)]
    without = [result.cell.label for result in results if not result.runs]
    return [
        *([f"Fewer finished runs than seeds: {'; '.join(short)}."] if short else ()),
        *([f"No finished run yet: {'; '.join(without)}."] if without else ()),
    ]
