"""Two methods on the same queries: differences with intervals and paired tests."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from srpo_envs.errors import ConfigError
from srpo_train.evaluation.results import BenchmarkResult, Results
from srpo_train.evaluation.scores import (
    AVG_AT_K,
    PASS_AT_K,
    Interval,
    Score,
    by_query,
    interval,
    mcnemar_p_value,
    sign_flip_p_value,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedScore:
    """One score of two methods over the queries both have."""

    first: float
    """Of the first method."""
    second: float
    """Of the second."""
    interval: Interval | None
    """95 % bootstrap interval over queries of second minus first; None for fewer than two queries."""
    p_value: float
    """Two-sided, of a paired test over queries."""
    test: str
    """Name of that test."""

    @property
    def difference(self) -> float:
        """Second minus first."""
        return self.second - self.first


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two methods on one benchmark, or on the macro average of all that both have."""

    name: str
    """The benchmark; ``macro`` for the average."""
    num_queries: int
    """Queries that both methods have samples of."""
    num_unpaired: int
    """Queries of which only one has any; left out."""
    avg_at_k: PairedScore
    """Mean share of correct samples."""
    pass_at_k: PairedScore
    """Share of queries solved by a sample."""


def compare(first: Results, second: Results) -> list[Comparison]:
    """Compare two methods on every benchmark both have, then on their macro average if there are several.

    A query's value is its mean over the seeds of its method. Avg@k is tested by flipping signs of the differences,
    Pass@k by McNemar's test where each method has one seed.

    Raises:
        ConfigError: nothing in common, another k, or tasks of one name that are not the same.
    """
    names = [name for name in first.benchmarks if name in second.benchmarks]
    if not names:
        raise ConfigError(
            f"nothing to compare: one has {', '.join(first.benchmarks) or 'no benchmarks'}, "
            f"the other {', '.join(second.benchmarks) or 'none'}"
        )
    if first.samples != second.samples:
        raise ConfigError(
            f"one has {first.samples} samples a task, the other {second.samples}; Pass@k compares at equal k only"
        )
    for name in names:
        _check_same_tasks(name, first.benchmarks[name], second.benchmarks[name])
    pairs = [_Pairs(name, first, second) for name in names]
    single = [_compare([pair], name) for name, pair in zip(names, pairs, strict=True)]
    return single if len(pairs) == 1 else [*single, _compare(pairs, "macro")]


class _Pairs:
    """One benchmark's queries under two methods."""

    def __init__(self, name: str, first: Results, second: Results) -> None:
        self._values = {
            score.name: (by_query(first, name, score), by_query(second, name, score)) for score in (AVG_AT_K, PASS_AT_K)
        }
        ids = [set(values) for values in self._values[AVG_AT_K.name]]
        self.task_ids = sorted(ids[0] & ids[1])
        self.num_unpaired = len(ids[0] ^ ids[1])
        self.is_yes_or_no = all(len(results.benchmarks[name].seeds) == 1 for results in (first, second))
        if not self.task_ids:
            raise ConfigError(f"benchmark {name!r}: no query of which both have samples; finish the evaluations first")

    def columns(self, score: Score) -> tuple[list[float], list[float]]:
        """Return the values of both methods, query by query."""
        first, second = self._values[score.name]
        return [first[task_id] for task_id in self.task_ids], [second[task_id] for task_id in self.task_ids]


def _compare(pairs: list[_Pairs], name: str) -> Comparison:
    is_yes_or_no = len(pairs) == 1 and pairs[0].is_yes_or_no
    return Comparison(
        name=name,
        num_queries=sum(len(pair.task_ids) for pair in pairs),
        num_unpaired=sum(pair.num_unpaired for pair in pairs),
        avg_at_k=_score(pairs, AVG_AT_K, is_yes_or_no=False),
        pass_at_k=_score(pairs, PASS_AT_K, is_yes_or_no=is_yes_or_no),
    )


def _score(pairs: list[_Pairs], score: Score, *, is_yes_or_no: bool) -> PairedScore:
    columns = [pair.columns(score) for pair in pairs]
    differences = [[b - a for a, b in zip(*column, strict=True)] for column in columns]
    if is_yes_or_no:
        only_first, only_second = differences[0].count(-1.0), differences[0].count(1.0)
        test, p_value = "McNemar", mcnemar_p_value(only_first, only_second)
    else:
        # Each query weighs as it does in the macro average.
        test = "sign flips"
        p_value = sign_flip_p_value([value / len(group) for group in differences for value in group])
    return PairedScore(
        first=statistics.fmean(statistics.fmean(column[0]) for column in columns),
        second=statistics.fmean(statistics.fmean(column[1]) for column in columns),
        interval=interval(differences),
        p_value=p_value,
        test=test,
    )


def _check_same_tasks(name: str, first: BenchmarkResult, second: BenchmarkResult) -> None:
    if first.digest != second.digest:
        raise ConfigError(
            f"benchmark {name!r}: the two were evaluated on other tasks ({first.num_tasks} with digest "
            f"{first.digest[:12]}, {second.num_tasks} with digest {second.digest[:12]}); evaluate both on the same "
            "data with the same --limit"
        )
