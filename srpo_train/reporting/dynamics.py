"""Training dynamics of runs as files: the picture, every step as CSV, and the paper's statistics of each run."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from srpo_train.reporting.dynamics_figure import Axis, draw_dynamics
from srpo_train.reporting.markdown import table_to_markdown
from srpo_train.reporting.paper import DynamicsRow
from srpo_train.reporting.paper_tables import dynamics_table
from srpo_train.reporting.tables import Table
from srpo_train.reporting.traces import Point, Trace, read_traces, statistics_of


def write_dynamics(
    paths: Sequence[Path],
    out: Path,
    *,
    axis: Axis = "step",
    labels: Mapping[Path, str] | None = None,
    with_paper: bool = True,
) -> tuple[Table, list[Path]]:
    """Write picture, traces and statistics of runs into a folder.

    Args:
        paths: Runs, or folders of them.
        out: The folder; made when it is not there.
        axis: What is drawn against.
        labels: Method names by path.
        with_paper: Whether the paper's own statistics stand beside.

    Returns:
        The table of statistics, and the files written.

    Raises:
        ConfigError: a path holds no run, one run is given twice, or labels are not of use.
        RecordError: a run has no training step yet, or a file is damaged.
        MissingExtraError: matplotlib is not installed.
    """
    methods = read_traces(paths, labels)
    rows = [statistics_of(trace, f"{name}, seed {trace.seed}") for name, traces in methods.items() for trace in traces]
    table = dynamics_table(rows, with_paper=with_paper)
    out.mkdir(parents=True, exist_ok=True)
    files = [out / name for name in ("dynamics.png", "dynamics.csv", "dynamics-statistics.csv", "dynamics.md")]
    draw_dynamics(methods, files[0], axis)
    _write_traces(files[1], methods)
    _write_statistics(files[2], rows)
    files[3].write_text(f"![Training dynamics]({files[0].name})\n\n{table_to_markdown(table)}\n", encoding="utf-8")
    return table, files


def _write_traces(path: Path, methods: Mapping[str, Sequence[Trace]]) -> None:
    """Write every step of every run as CSV, one column for each quantity and, of eq. 5, each cardinality."""
    traces = [(name, trace) for name, found in methods.items() for trace in found]
    sizes = sorted({size for _, trace in traces for point in trace.points for size in point.variance})
    plain = [field.name for field in fields(Point) if field.name not in ("variance", "covariance")]
    split = [f"{kind}_k{size}" for size in sizes for kind in ("variance", "covariance")]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", "run", *plain, *split])
        for name, trace in traces:
            for point in trace.points:
                parts = [part.get(size) for size in sizes for part in (point.variance, point.covariance)]
                writer.writerow([name, trace.seed, trace.path, *(getattr(point, key) for key in plain), *parts])


def _write_statistics(path: Path, rows: Sequence[DynamicsRow]) -> None:
    """Write statistics as CSV, one line a run."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        names = [field.name for field in fields(DynamicsRow)]
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in rows)
