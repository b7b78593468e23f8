"""Scores of an evaluation as pure functions: Avg@k, Pass@k, macro averages, spread over seeds, intervals and tests.

Everything is computed from the counts that `results.json` holds. A query's samples are n, its correct ones c. What is
random draws from its own seed, so that the same counts give the same numbers everywhere::

    avg_at_k(tasks)                          # mean over queries of c/n
    pass_at_k(tasks, k=4)                    # unbiased estimate of solving a query within 4 of n samples
    spread([0.61, 0.62, 0.60])               # mean and sample standard deviation over seeds
    interval([shares_of_aime, shares_of_amc])  # of the unweighted macro average, over queries
    sign_flip_p_value(differences)           # paired, two methods on the same queries
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from srpo_train.evaluation.results import Results, SeedResult, TaskResult

Counts = Sequence[TaskResult]
"""The queries of one benchmark under one seed."""

_MOST_EXACT = 14
"""Differences up to which every assignment of signs is looked at."""
_CHUNK = 1 << 20
"""Random numbers that are held at once."""


# --- one benchmark, one seed --------------------------------------------------------------------------------------


def avg_at_k(tasks: Counts) -> float | None:
    """Return the mean over queries of the share of correct samples (SRPO, section 5); None without queries."""
    return _mean([task.num_correct / task.num_samples for task in tasks])


def share_solved(tasks: Counts) -> float | None:
    """Return the share of queries with at least one correct sample: Pass@k with k = n, as the paper has it."""
    return _mean([float(task.num_correct > 0) for task in tasks])


def pass_at_k(tasks: Counts, k: int) -> float | None:
    """Return the mean over queries of the unbiased estimate of Pass@k from n samples, n >= k.

    Queries of which fewer than k samples are left say nothing about k samples and are not counted.

    Raises:
        ValueError: k is below 1.
    """
    return _mean([pass_probability(t.num_samples, t.num_correct, k) for t in tasks if t.num_samples >= k])


def pass_probability(num_samples: int, num_correct: int, k: int) -> float:
    """Return the chance that k samples drawn without return from n, of which c are correct, hold a correct one.

    1 - C(n-c, k) / C(n, k) (Chen et al. 2021, "Evaluating large language models trained on code", eq. 1), as the
    product over i = n-c+1..n of (1 - k/i), which neither overflows nor cancels.

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(
            f"expected 0 <= num_correct <= num_samples and 1 <= k <= num_samples, "
            f"got num_correct {num_correct}, num_samples {num_samples}, k {k}"
        )
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(num_samples - num_correct + 1, num_samples + 1))


# --- seeds and benchmarks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Several runs of one thing."""

    mean: float
    """Of all runs."""
    std: float | None
    """Sample standard deviation (n - 1 below); None for a single run, which has no spread."""
    num_runs: int
    """How many there were."""


def spread(values: Sequence[float]) -> Spread | None:
    """Return mean and sample standard deviation; None without values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, len(values))


def macro_average(values: Sequence[float]) -> float:
    """Return the unweighted mean over benchmarks, large and small alike."""
    return statistics.fmean(values)


@dataclass(frozen=True, slots=True)
class Score:
    """One score and where it is read."""

    name: str
    """Field of `SeedResult`."""
    of_seed: Callable[[SeedResult], float | None]
    """Its value for a benchmark under a seed."""
    of_query: Callable[[TaskResult], float]
    """Its value for one query."""


AVG_AT_K = Score("avg_at_k", lambda result: result.avg_at_k, lambda task: task.num_correct / task.num_samples)
"""Mean share of correct samples."""

PASS_AT_K = Score("pass_at_k", lambda result: result.pass_at_k, lambda task: float(task.num_correct > 0))
"""Share of queries that a sample solved."""


def by_seed(results: Results, benchmark: str, score: Score) -> dict[int, float]:
    """Return a score of one benchmark for each seed that has it."""
    values = {seed: score.of_seed(result) for seed, result in results.benchmarks[benchmark].seeds.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def macro_by_seed(results: Results, score: Score) -> dict[int, float]:
    """Return the macro average of a score for each seed under which every benchmark has it."""
    columns = [by_seed(results, name, score) for name in results.benchmarks]
    if not columns:
        return {}
    shared = set(columns[0]).intersection(*columns[1:])
    return {seed: macro_average([column[seed] for column in columns]) for seed in sorted(shared)}


def by_query(results: Results, benchmark: str, score: Score) -> dict[str, float]:
    """Return a score of each query of a benchmark, averaged over the seeds that have the query."""
    found: dict[str, list[float]] = {}
    for result in results.benchmarks[benchmark].seeds.values():
        for task in result.per_task:
            found.setdefault(task.task_id, []).append(score.of_query(task))
    return {task_id: statistics.fmean(values) for task_id, values in found.items()}


# --- intervals over queries ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""


def interval(
    groups: Sequence[Sequence[float]], *, confidence: float = 0.95, num_resamples: int = 5_000, seed: int = 0
) -> Interval | None:
    """Return the percentile bootstrap interval of the macro average of queries' values.

    Queries are drawn anew with return within each benchmark. The interval says how far the figure would move with other
    queries of the same kind; it says nothing about other training runs, which are what seeds are for.

    Args:
        groups: The values of each benchmark's queries; one group for one benchmark.
        confidence: Share of resamples inside.
        num_resamples: How often queries are drawn.
        seed: Of the draws.

    Returns:
        The interval; None where a benchmark has fewer than two queries.
    """
    if not groups or min(map(len, groups)) < 2:
        return None
    rng = np.random.default_rng(seed)
    means = np.mean([_resampled_means(np.asarray(group, float), num_resamples, rng) for group in groups], axis=0)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _resampled_means(values: np.ndarray, num_resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means of so many draws with return, [num_resamples]."""
    size, rows = len(values), max(_CHUNK // len(values), 1)
    parts = [
        values[rng.integers(size, size=(min(rows, num_resamples - start), size))].mean(axis=1)
        for start in range(0, num_resamples, rows)
    ]
    return np.concatenate(parts)


# --- two methods on the same queries ------------------------------------------------------------------------------


def sign_flip_p_value(differences: Sequence[float], *, num_resamples: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired permutation test of the mean difference.

    Were the two methods alike, each query's difference would have either sign with equal chance. The p-value is the
    share of assignments of signs under which the mean is at least as far from 0 as the one found: exact for few
    queries that differ, drawn for more, the found assignment itself among the drawn ones (Phipson and Smyth 2010).

    Args:
        differences: One for each query.
        num_resamples: Assignments drawn.
        seed: Of the draws.
    """
    moved = np.asarray([value for value in differences if value], float)
    if not len(moved):
        return 1.0
    found = abs(moved.sum()) - 1e-12 * np.abs(moved).sum()  # equal sums may differ by rounding
    if len(moved) <= _MOST_EXACT:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(moved))))
        return float((np.abs(signs @ moved) >= found).mean())
    rng, rows, num_extreme = np.random.default_rng(seed), max(_CHUNK // len(moved), 1), 0
    for start in range(0, num_resamples, rows):
        signs = rng.integers(2, size=(min(rows, num_resamples - start), len(moved))) * 2.0 - 1.0
        num_extreme += int((np.abs(signs @ moved) >= found).sum())
    return (num_extreme + 1) / (num_resamples + 1)


def mcnemar_p_value(num_only_first: int, num_only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test on paired yes-or-no outcomes.

    Args:
        num_only_first: Queries that only the first method solved.
        num_only_second: Queries that only the second solved.

    Raises:
        ValueError: a count is below 0.
    """
    if min(num_only_first, num_only_second) < 0:
        raise ValueError(f"expected counts of at least 0, got {num_only_first} and {num_only_second}")
    total, few = num_only_first + num_only_second, min(num_only_first, num_only_second)
    tail = term = 1
    for i in range(few):
        term = term * (total - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << total))  # whole numbers, which divide exactly however large they are


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
