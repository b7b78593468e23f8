"""What the runs of a sweep came to: one line a run as CSV, one line a cell as a table with means and deviations."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from srpo_envs.errors import RecordError
from srpo_train.metrics import series
from srpo_train.reporting.markdown import table_to_markdown
from srpo_train.reporting.tables import Better, Block, Column, Row, Table, mark_best
from srpo_train.reporting.tables import Cell as Entry
from srpo_train.reporting.traces import variation
from srpo_train.run_dir import write_whole
from srpo_train.sweep.cells import read_run, standing
from srpo_train.sweep.finished import CellResult, by_group, note_on_missing, read_finished

CSV_FILE = "results.csv"
"""One line for every finished run."""

TABLE_FILE = "results.md"
"""One line for every cell with finished runs."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one finished run came to."""

    seed: int
    """Its seed."""
    num_samples: int
    """k of Avg@k and Pass@k."""
    num_tasks: int
    """Held-out questions of an evaluation."""
    final_avg: float
    """Avg@k at the end."""
    final_pass: float
    """Pass@k at the end."""
    best_avg: float
    """Largest Avg@k of all evaluations after the first step."""
    best_pass: float
    """Largest Pass@k likewise."""
    num_steps: int
    """Training steps."""
    num_tokens: float
    """Sampled training tokens."""
    tokens_per_episode: float
    """Sampled tokens of a held-out episode at the end."""
    cardinality_mean: float
    """K_e over the trained events; mean over steps."""
    grad_norm_mean: float
    """Gradient norm before clipping; mean over steps."""
    grad_norm_cv: float
    """Its sample standard deviation over the steps, by its mean."""
    clip_fraction: float
    """Units whose gradient the clip cut off; mean over steps."""
    log_ratio_std: float
    """Standard deviation of the set log-ratio before the last update of a step; mean over steps."""
    zero_variance_groups: float
    """Share of questions whose episodes have equal rewards; mean over steps."""
    seconds: float
    """Time of training steps and evaluations."""


SweepResult: TypeAlias = CellResult[RunResult]


def read_results(out: str | Path) -> list[SweepResult]:
    """Return the cells of a sweep directory with their finished runs, in the order of the sweep.

    Raises:
        RecordError: it is not the directory of a sweep.
    """
    return read_finished(out, _read_run)


def write_results(out: str | Path) -> Path:
    """Write ``results.csv`` and ``results.md`` into a sweep directory and return the path of the second.

    Raises:
        RecordError: no run of it is finished.
    """
    results = read_results(out)
    if not any(result.runs for result in results):
        raise RecordError(f"{out}: no finished run with an evaluation; set eval.every, and let one come to its end")
    _write_csv(Path(out) / CSV_FILE, results)
    write_whole(Path(out) / TABLE_FILE, table_to_markdown(make_table(Path(out).name, results)) + "\n")
    return Path(out) / TABLE_FILE


def make_table(title: str, results: Sequence[SweepResult]) -> Table:
    """Return the results as a table, one row for each cell with finished runs, the best means marked.

    Where the cells were not evaluated alike nothing is marked, and the table says so.
    """
    all_cells, results = results, [result for result in results if result.runs]
    sizes = dict.fromkeys((run.num_tasks, run.num_samples) for result in results for run in result.runs)
    k = str(results[0].runs[0].num_samples) if len(sizes) == 1 else "k"
    better: Better = "higher" if len(sizes) == 1 else ""
    columns = (
        Column(name=f"Avg@{k} at the end", better=better),
        Column(name=f"Pass@{k} at the end", better=better),
        Column(name=f"best Avg@{k}", better=better),
        Column(name="training tokens, thousands"),
        Column(name="tokens an answer"),
        Column(name="mean K"),
        Column(name="gradient norm"),
        Column(name="its variation"),
        Column(name="clipped"),
    )
    blocks = [
        Block(title=group, rows=mark_best([Row(name=r.cell.label, cells=_cells(r)) for r in members], columns))
        for group, members in by_group(results).items()
    ]
    seeds = sorted({run.seed for result in results for run in result.runs})
    evaluated = " or ".join(f"{num_tasks} held-out questions with {n} samples each" for num_tasks, n in sizes)
    notes = [
        f"Percent of {evaluated}; mean ± sample standard deviation over the seeds {', '.join(map(str, seeds))}. "
        "Variation is the sample standard deviation of the gradient norm over training steps by its mean; clipped is "
        "the share of units whose gradient the clip cut off."
    ]
    if len(sizes) > 1:
        notes.append("Cells were not evaluated alike: their scores do not compare, and none is marked.")
    notes += note_on_missing(all_cells, seeds)
    return Table(title=title, columns=columns, blocks=tuple(blocks), row_heading="Runs", notes=tuple(notes))


def _cells(result: SweepResult) -> tuple[Entry, ...]:
    return (
        result.score(lambda run: run.final_avg).cell(scale=100),
        result.score(lambda run: run.final_pass).cell(scale=100),
        result.score(lambda run: run.best_avg).cell(scale=100),
        result.score(lambda run: run.num_tokens).cell(scale=1e-3, decimals=0),
        result.score(lambda run: run.tokens_per_episode).cell(decimals=0),
        result.score(lambda run: run.cardinality_mean).cell(decimals=2),
        result.score(lambda run: run.grad_norm_mean).cell(decimals=2),
        result.score(lambda run: run.grad_norm_cv).cell(decimals=2),
        result.score(lambda run: run.clip_fraction).cell(scale=100, decimals=2),
    )


def _read_run(run_dir: Path) -> RunResult | None:
    """Return what a run came to; None when it is not finished, or was never evaluated."""
    if (found := read_run(run_dir)) is None:
        return None
    recipe, lines = found
    evaluated = [line for line in lines if line["step"] and "eval/avg_at_k" in line]
    if not evaluated or not (progress := standing(recipe)).is_finished:
        return None
    last = evaluated[-1]
    return RunResult(
        seed=recipe.seed,
        num_samples=recipe.eval.samples_per_task,
        num_tasks=recipe.eval.num_tasks,
        final_avg=last["eval/avg_at_k"],
        final_pass=last["eval/pass_at_k"],
        best_avg=max(line["eval/avg_at_k"] for line in evaluated),
        best_pass=max(line["eval/pass_at_k"] for line in evaluated),
        num_steps=progress.num_steps,
        num_tokens=sum(series(lines, "rollout/num_tokens")[1]),
        tokens_per_episode=last["eval/num_tokens"] / last["eval/num_episodes"],
        cardinality_mean=_mean(lines, "train/cardinality_mean"),
        grad_norm_mean=_mean(lines, "train/grad_norm"),
        grad_norm_cv=variation(series(lines, "train/grad_norm")[1]) or 0.0,
        clip_fraction=_mean(lines, "train/clip_fraction"),
        log_ratio_std=_mean(lines, "train/log_ratio_std"),
        zero_variance_groups=_mean(lines, "rollout/zero_variance_groups"),
        seconds=progress.seconds,
    )


def _mean(lines: Sequence[dict[str, float]], name: str) -> float:
    values = series(lines, name)[1]
    return statistics.fmean(values) if values else 0.0


def _write_csv(path: Path, results: Iterable[SweepResult]) -> None:
    rows = [
        {"cell": result.cell.label, "settings": json.dumps(dict(result.cell.settings)), **vars(run)}
        for result in results
        for run in result.runs
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
