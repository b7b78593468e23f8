"""Runs and evaluations as lines of tables: those that differ by seed alone are one line, with mean and deviation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from srpo_envs.errors import ConfigError
from srpo_train.evaluation import BenchmarkResult, Results, SeedResult
from srpo_train.evaluation.scores import macro_average, spread
from srpo_train.reporting.entries import BEST, Entry
from srpo_train.reporting.grouping import grouped
from srpo_train.reporting.tables import Score

Measure = Callable[[SeedResult], float | None]
"""Reads one figure."""

Replicate = Mapping[str, Sequence[SeedResult]]
"""By benchmark, the results that one independent repetition averages over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodRow:
    """One method: a run, or the seeds of it."""

    name: str
    """In tables."""
    model: str
    """Base model."""
    entries: tuple[Entry, ...]
    """What is averaged."""

    @property
    def num_seeds(self) -> int:
        """Training seeds."""
        return len({entry.seed for entry in self.entries})

    @property
    def replicates(self) -> list[Replicate]:
        """Independent repetitions: training seeds where there are several, else the sampling seeds of one model."""
        by_seed = _merged(self.entries)
        if len(by_seed) > 1:
            return [{name: list(found.values()) for name, found in one.items()} for one in by_seed.values()]
        (only,) = by_seed.values()
        sampling = sorted({seed for found in only.values() for seed in found})
        return [{name: [found[seed]] for name, found in only.items() if seed in found} for seed in sampling]

    @property
    def shown_name(self) -> str:
        """The name, with the number of repetitions where there is more than one."""
        number = len(self.replicates)
        if number < 2:
            return self.name
        return f"{self.name} (n={number})" if self.num_seeds > 1 else f"{self.name} ({number} sampling seeds)"

    def num_repetitions(self, benchmark: str) -> int:
        """Return how many of the repetitions have a benchmark."""
        return sum(bool(one.get(benchmark)) for one in self.replicates)

    def score(self, benchmark: str, measure: Measure) -> Score | None:
        """Return mean and sample standard deviation of a figure; None where it was not measured."""
        return _as_score([_value(one, benchmark, measure) for one in self.replicates])

    def macro(self, benchmarks: Sequence[str], measure: Measure) -> Score | None:
        """Return those of the unweighted average over benchmarks, taken within each repetition that has them all."""
        averages: list[float | None] = []
        for one in self.replicates:
            values = [value for name in benchmarks if (value := _value(one, name, measure)) is not None]
            averages.append(macro_average(values) if len(values) == len(benchmarks) else None)
        return _as_score(averages)

    def results(self, benchmark: str) -> list[SeedResult]:
        """Return every result of a benchmark."""
        return [result for one in self.replicates for result in one.get(benchmark, ())]

    def pooled(self, benchmarks: Sequence[str]) -> Results:
        """Return all its results of some benchmarks as those of one evaluation, whose seeds are numbered anew."""
        first = self.entries[0]
        return Results(
            method=self.name,
            model=self.model,
            source=str(first.path),
            samples=first.samples,
            benchmarks={name: self._pooled(name) for name in benchmarks},
        )

    def _pooled(self, benchmark: str) -> BenchmarkResult:
        known = next(entry.benchmarks[benchmark] for entry in self.entries if benchmark in entry.benchmarks)
        return replace(known, seeds=dict(enumerate(self.results(benchmark))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineup:
    """Lines that can stand in one table: the same k, and benchmarks or the same tasks of evaluation during training."""

    first: Entry
    """One of them, for what they share."""
    rows: tuple[MethodRow, ...]
    """In the order given."""
    benchmarks: tuple[str, ...]
    """Of any of them, in the order in which they first appear."""

    @property
    def models(self) -> list[str]:
        """Base models, in the order in which they first appear."""
        return list(dict.fromkeys(row.model for row in self.rows))


def line_up(entries: Sequence[Entry]) -> list[Lineup]:
    """Sort what was read into lines and tables.

    Raises:
        ConfigError: two entries claim the same seed of the same thing, one label is for different recipes, or a
            benchmark was evaluated on different tasks.
    """
    lineups: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        lineups[_table_key(entry)].append(entry)
    return [_lineup(found) for found in lineups.values()]


def _lineup(entries: Sequence[Entry]) -> Lineup:
    _check_tasks(entries)
    benchmarks = dict.fromkeys(name for entry in entries for name in entry.benchmarks)
    return Lineup(first=entries[0], rows=tuple(_rows(entries)), benchmarks=tuple(benchmarks))


def _table_key(entry: Entry) -> tuple[str, ...]:
    """What must be equal in one table; benchmarks of one name are checked apart."""
    digest = entry.benchmarks[BEST].digest if entry.kind == "training" else ""
    return (entry.kind, str(entry.samples), digest)


def _rows(entries: Sequence[Entry]) -> Iterator[MethodRow]:
    for model in dict.fromkeys(entry.model for entry in entries):
        for name, found in grouped([entry for entry in entries if entry.model == model]).items():
            _merged(found)
            in_order = sorted(found, key=lambda entry: -1 if entry.seed is None else entry.seed)
            yield MethodRow(name=name, model=model, entries=tuple(in_order))


def _check_tasks(entries: Sequence[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        for name, result in entry.benchmarks.items():
            other = seen.setdefault(name, entry)
            known = other.benchmarks[name]
            if (known.digest, known.num_tasks) != (result.digest, result.num_tasks):
                raise ConfigError(
                    f"{name}: {other.path} and {entry.path} evaluated different tasks ({known.num_tasks} with digest "
                    f"{known.digest}, {result.num_tasks} with digest {result.digest}); evaluate the same ones, or "
                    "report them apart"
                )


def _merged(entries: Sequence[Entry]) -> dict[int | None, dict[str, dict[int, SeedResult]]]:
    """Results by training seed, benchmark and sampling seed."""
    merged: dict[int | None, dict[str, dict[int, SeedResult]]] = defaultdict(lambda: defaultdict(dict))
    source: dict[tuple[int | None, str, int], Entry] = {}
    for entry in entries:
        for name, result in entry.benchmarks.items():
            for seed, found in result.seeds.items():
                other = source.setdefault((entry.seed, name, seed), entry)
                if other is not entry:
                    raise ConfigError(
                        f"{other.path} and {entry.path}: the same method and seed, both with {name!r}; leave one out, "
                        f'or tell them apart with --label {entry.path}="..."'
                    )
                merged[entry.seed][name][seed] = found
    return merged


def _value(one: Replicate, benchmark: str, measure: Measure) -> float | None:
    values = [value for result in one.get(benchmark, ()) if (value := measure(result)) is not None]
    return fmean(values) if values else None


def _as_score(values: Sequence[float | None]) -> Score | None:
    found = spread([value for value in values if value is not None])
    return Score(found.mean, found.std) if found else None
