"""How evaluations look: a bar while they run, tables when they are done, and both as one JSON object."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table

from srpo_train.cli._text import shown
from srpo_train.evaluation import scores
from srpo_train.evaluation.results import BenchmarkResult, Results

if TYPE_CHECKING:
    from srpo_train.evaluation.harness import OnProgress, Progress

_MOST_REASONS = 5
_SCORES = (scores.AVG_AT_K, scores.PASS_AT_K)


@contextlib.contextmanager
def show_progress(samples: int) -> Iterator[OnProgress]:
    """Draw a bar for each benchmark and seed while the body runs, with the score so far."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"Avg@{samples} {{task.fields[score]}}", markup=False),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        known: dict[tuple[str, int], Any] = {}

        def show(progress: Progress) -> None:
            pair = (progress.benchmark, progress.seed)
            if pair not in known:
                name = f"{progress.benchmark}, seed {progress.seed}"
                known[pair] = bars.add_task(name, total=progress.num_samples, score="-")
            bars.update(known[pair], completed=progress.num_done, score=percent(progress.share_correct))

        yield show


@contextlib.contextmanager
def quiet_failures() -> Iterator[None]:
    """Leave it to the report to say which samples failed, while the body runs; ``srpo -v`` logs each with its trace."""
    loggers = [logging.getLogger(name) for name in ("srpo_train.collect", "srpo_train.engines.agent")]
    before = [logger.level for logger in loggers]
    if not logging.getLogger().isEnabledFor(logging.INFO):
        for logger in loggers:
            logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def show_results(results: Results, directory: Path) -> None:
    """Print what an evaluation found, what it cost, and what went wrong."""
    console = Console()
    console.print(shown(_title(results), "bold"))
    console.print(_score_table(results))
    for table in (_coverage_table(results), _cost_table(results), _metric_table(results)):
        if table.row_count:
            console.print()
            console.print(table)
    console.print()
    for name, found in results.benchmarks.items():
        console.print(shown(_told_tasks(name, found)), soft_wrap=True)
    for line in _warnings(results):
        console.print(shown(line, "yellow"), soft_wrap=True)
    console.print(shown(f"samples and results: {directory}"), soft_wrap=True)


def summary(results: Results) -> dict[str, Any]:
    """Return scores, spread over seeds and counts as JSON values; shares, not percent."""
    return {
        "method": results.method,
        "model": results.model,
        "source": results.source,
        "samples": results.samples,
        "benchmarks": {name: _summary_of(results, name, found) for name, found in results.benchmarks.items()},
        "macro": {score.name: _spread_json(scores.macro_by_seed(results, score)) for score in _SCORES},
    }


def percent(value: float | None) -> str:
    """Write a share as in the paper's tables."""
    return "-" if value is None else f"{100 * value:.1f}"


# --- figures ------------------------------------------------------------------------------------------------------


def _summary_of(results: Results, name: str, found: BenchmarkResult) -> dict[str, Any]:
    return {
        "num_tasks": found.num_tasks,
        "set_size": found.set_size,
        "expected_tasks": found.expected_tasks,
        "digest": found.digest,
        "num_samples": sum(result.num_samples for result in found.seeds.values()),
        "num_failed": sum(result.num_failed for result in found.seeds.values()),
        **{score.name: _spread_json(scores.by_seed(results, name, score)) for score in _SCORES},
        "costs": mean_by_name([result.costs for result in found.seeds.values()]),
        "metrics": mean_by_name([result.metrics for result in found.seeds.values()]),
    }


def _spread_json(values: Mapping[int, float]) -> dict[str, Any]:
    spread = scores.spread(list(values.values()))
    return {
        "mean": spread and spread.mean,
        "std": spread and spread.std,
        "by_seed": {str(seed): value for seed, value in values.items()},
    }


def mean_by_name(columns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over seeds of each figure that every seed has."""
    names = [name for name in columns[0] if all(name in column for column in columns)] if columns else []
    return {name: sum(column[name] for column in columns) / len(columns) for name in names}


# --- tables -------------------------------------------------------------------------------------------------------


def _title(results: Results) -> str:
    worlds = sorted({found.env_id.rpartition("/")[2] for found in results.benchmarks.values()})
    seeds = sorted({seed for found in results.benchmarks.values() for seed in found.seeds})
    told = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    return f"{results.source} on {', '.join(worlds)}, {_count(results.samples, 'sample')} a task, {told}"


def _score_table(results: Results) -> Table:
    k = results.samples
    table = _table("%", "tasks", f"Avg@{k}", "95 %", f"Pass@{k}", "95 %", "lost")
    for name, found in results.benchmarks.items():
        lost = sum(result.num_failed for result in found.seeds.values())
        cells = [*_cells(results, [name], scores.AVG_AT_K), *_cells(results, [name], scores.PASS_AT_K)]
        table.add_row(shown(name), f"{found.num_tasks:,}", *cells, f"{lost:,}" if lost else "")
    if len(results.benchmarks) > 1:
        names = list(results.benchmarks)
        cells = [*_cells(results, names, scores.AVG_AT_K), *_cells(results, names, scores.PASS_AT_K)]
        table.add_row("macro average", "", *cells, "", style="bold")
    return table


def _cells(results: Results, names: Sequence[str], score: scores.Score) -> tuple[str, str]:
    """The macro average of benchmarks, or one, with its spread over seeds; and its interval over queries."""
    chosen = dataclasses.replace(results, benchmarks={name: results.benchmarks[name] for name in names})
    spread = scores.spread(list(scores.macro_by_seed(chosen, score).values()))
    groups = [list(scores.by_query(chosen, name, score).values()) for name in names]
    return _with_spread(spread), _interval(scores.interval(groups))


def _with_spread(spread: scores.Spread | None) -> str:
    if spread is None:
        return "-"
    return percent(spread.mean) + (f" ± {percent(spread.std)}" if spread.std is not None else "")


def _interval(found: scores.Interval | None) -> str:
    return f"{percent(found.low)}..{percent(found.high)}" if found else "-"


def _coverage_table(results: Results) -> Table:
    """Unbiased Pass@k for the powers of two below k."""
    ks = [2**power for power in range(1, results.samples.bit_length()) if 2**power < results.samples]
    table = _table("unbiased Pass@k, %", *map(str, ks))
    if ks:
        for name, found in results.benchmarks.items():
            table.add_row(shown(name), *(percent(_mean_pass_at(found, k)) for k in ks))
    return table


def _mean_pass_at(found: BenchmarkResult, k: int) -> float | None:
    values = [scores.pass_at_k(result.per_task, k) for result in found.seeds.values()]
    spread = scores.spread([value for value in values if value is not None])
    return spread.mean if spread else None


def _cost_table(results: Results) -> Table:
    columns = {
        name: mean_by_name([r.costs for r in found.seeds.values()]) for name, found in results.benchmarks.items()
    }
    return _figure_table("cost, mean over seeds", columns)


def _metric_table(results: Results) -> Table:
    columns = {
        name: mean_by_name([r.metrics for r in found.seeds.values()]) for name, found in results.benchmarks.items()
    }
    return _figure_table("measured, mean over seeds", columns)


def _figure_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> Table:
    """Figures by name, one column for each benchmark."""
    table = _table(title, *columns)
    table.columns[0].no_wrap = True  # figures of roles differ at their ends, which narrow terminals would cut off
    for column in table.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for figure in dict.fromkeys(name for column in columns.values() for name in column):
        table.add_row(shown(figure), *(_number(column.get(figure)) for column in columns.values()))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _table(first: str, *others: str) -> Table:
    table = Table(first, *map(_heading, others), box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    return table


def _heading(name: str) -> Column:
    return Column(shown(name))


def _told_tasks(name: str, found: BenchmarkResult) -> str:
    """Which tasks they were."""
    part = f"the first {found.num_tasks:,} of " if found.num_tasks < found.set_size else ""
    published = ", as published" if found.expected_tasks == found.set_size else ""
    return f"{name}: {part}{found.set_size:,} tasks{published}; digest {found.digest[:12]}"


# --- what went wrong ----------------------------------------------------------------------------------------------


def _warnings(results: Results) -> Iterator[str]:
    for name, found in results.benchmarks.items():
        if found.expected_tasks not in (None, found.set_size):
            yield f"{name}: the set has {found.set_size:,} tasks, the published one {found.expected_tasks:,}"
        yield from _losses(name, found, results.samples)


def _losses(name: str, found: BenchmarkResult, samples: int) -> Iterator[str]:
    lost = sum(result.num_failed for result in found.seeds.values())
    unanswered = sum(result.num_unanswered for result in found.seeds.values())
    reasons = sum((Counter(result.reasons) for result in found.seeds.values()), Counter[str]())
    if lost:
        yield f"{name}: {_count(lost, 'sample')} lost and in no score; the same command tries them again"
    if missing := sum(found.num_tasks * samples - r.num_samples - r.num_failed for r in found.seeds.values()):
        yield f"{name}: {_count(missing, 'sample')} not drawn yet; the same command goes on"
    if unanswered:
        yield f"{name}: {_count(unanswered, 'sample')} without an answer, counted as wrong"
    for reason, number in reasons.most_common(_MOST_REASONS):
        yield f"  {number:,} x {reason}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
