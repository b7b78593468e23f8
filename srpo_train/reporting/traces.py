"""Runs step by step, as Figure 3 and appendix D of the paper look at them, and the statistics told there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from srpo_envs.errors import ConfigError, RecordError
from srpo_train.config import load_recipe
from srpo_train.metrics import METRICS_FILE, names_below, read_metrics
from srpo_train.reporting.entries import find_runs
from srpo_train.reporting.grouping import check_labels, grouped
from srpo_train.reporting.methods import Choices, choices_of, method_name
from srpo_train.reporting.paper import DynamicsRow
from srpo_train.run_dir import RECIPE_FILE

VARIANCE, COVARIANCE = "train/log_ratio_var/k", "train/log_ratio_cov/k"
"""Metrics of eq. 5; a cardinality follows."""

_ENDS = 5  # training steps whose mean is the score at the end


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One step of a run; None where nothing was measured."""

    step: int
    """Training step; 0 is before training."""
    tokens: float
    """Tokens sampled in training so far."""
    time_s: float
    """Seconds of training steps so far."""
    score: float | None
    """Mean team reward of the step's episodes."""
    validation: float | None
    """Avg@k on held-out tasks."""
    grad_norm: float | None
    """Before clipping."""
    response_length: float | None
    """T, sampled tokens per policy call."""
    active_set: float | None
    """K, policy calls per event."""
    cost_proxy: float | None
    """K times T of section 5.6: sampled tokens per event."""
    event_completeness: float | None
    """Share of events whose every member answered."""
    num_events: float
    """Events of the step."""
    variance: Mapping[int, float]
    """Var(L) by cardinality (eq. 5)."""
    covariance: Mapping[int, float]
    """Its part from covariance between members, by cardinality."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One run."""

    path: Path
    """Its directory."""
    method: str
    """Name of the method."""
    is_labelled: bool
    """Whether the reader chose that name."""
    seed: int
    """Training seed."""
    choices: Choices
    """What it has in common with runs that differ by seed alone."""
    points: tuple[Point, ...]
    """Step by step."""

    def values(self, read: Callable[[Point], float | None]) -> list[float]:
        """Return one quantity of the steps that have it."""
        return [value for point in self.points if (value := read(point)) is not None]

    @property
    def largest_set(self) -> int | None:
        """The largest cardinality whose variance was measured."""
        return max((size for point in self.points for size in point.variance), default=None)


def read_traces(paths: Sequence[Path], labels: Mapping[Path, str] | None = None) -> dict[str, list[Trace]]:
    """Read runs, or all runs in a folder.

    Args:
        paths: Where they lie.
        labels: Method names by path, in the place of those that follow from the recipe.

    Returns:
        Runs by method, those that differ by seed alone under one name.

    Raises:
        ConfigError: a path holds no run, one run is given twice, or labels are not of use.
        RecordError: a run has no training step yet, or a file is damaged.
    """
    labels = labels or {}
    check_labels(labels, paths)
    methods = grouped([_read(run_dir, labels.get(path, "")) for path in paths for run_dir in find_runs(path)])
    for name, traces in methods.items():
        _check_seeds(name, traces)
    return methods


def statistics_of(trace: Trace, name: str) -> DynamicsRow:
    """Return the paper's statistics of a run, under a name.

    First and last are the first and last training step; the score at the end is the mean of the last five steps; the
    coefficient of variation is the sample standard deviation over the mean; completeness is that of all events.
    """
    norms, sizes = trace.values(lambda point: point.grad_norm), trace.values(lambda point: point.active_set)
    proxies, scores = trace.values(lambda point: point.cost_proxy), trace.values(lambda point: point.score)
    validation = trace.values(lambda point: point.validation)
    return DynamicsRow(
        run=name,
        last_score=statistics.fmean(scores[-_ENDS:]) if scores else None,
        best_avg_at_k=100 * max(validation) if validation else None,
        grad_norm_mean=statistics.fmean(norms) if norms else None,
        grad_norm_min=min(norms, default=None),
        grad_norm_max=max(norms, default=None),
        grad_norm_cv=variation(norms),
        active_set_first=sizes[0] if sizes else None,
        active_set_last=sizes[-1] if sizes else None,
        event_completeness=_completeness(trace),
        proxy_first=proxies[0] if proxies else None,
        proxy_last=proxies[-1] if proxies else None,
    )


def variation(values: Sequence[float]) -> float | None:
    """Return the coefficient of variation, sample standard deviation over mean, of the values that are finite.

    None for fewer than two of them. Steps whose gradient is not finite are skipped in training, and have none.
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2 or not statistics.fmean(known):
        return None
    return statistics.stdev(known) / statistics.fmean(known)


# --- from metrics -------------------------------------------------------------------------------------------------


def _read(run_dir: Path, label: str) -> Trace:
    recipe, lines = load_recipe(run_dir / RECIPE_FILE), read_metrics(run_dir)
    if not names_below(lines, "rollout/num_tokens"):
        raise RecordError(f"{run_dir / METRICS_FILE}: no training step to draw yet; train first")
    return Trace(
        path=run_dir,
        method=label or method_name(recipe, lines),
        is_labelled=bool(label),
        seed=recipe.seed,
        choices=choices_of(recipe),
        points=tuple(_points(lines)),
    )


def _points(lines: Sequence[Mapping[str, float]]) -> Iterator[Point]:
    tokens = time_s = 0.0
    for line in map(_finite, lines):
        tokens += line.get("rollout/num_tokens", 0.0)
        time_s += line.get("time/step_s", 0.0)
        yield Point(
            step=int(line["step"]),
            tokens=tokens,
            time_s=time_s,
            score=line.get("rollout/reward_mean"),
            validation=line.get("eval/avg_at_k"),
            grad_norm=line.get("train/grad_norm"),
            response_length=_ratio(line, "rollout/num_tokens", "rollout/num_calls"),
            active_set=_ratio(line, "rollout/num_calls", "rollout/num_events"),
            cost_proxy=_ratio(line, "rollout/num_tokens", "rollout/num_events"),
            event_completeness=line.get("rollout/event_completeness"),
            num_events=line.get("rollout/num_events", 0.0),
            variance=_by_size(line, VARIANCE),
            covariance=_by_size(line, COVARIANCE),
        )


def _finite(line: Mapping[str, float]) -> dict[str, float]:
    """What a step measured; a gradient that was not finite moved nothing, and has no place on an axis."""
    return {name: value for name, value in line.items() if math.isfinite(value)}


def _ratio(line: Mapping[str, float], above: str, below: str) -> float | None:
    return line[above] / line[below] if line.get(below) and above in line else None


def _by_size(line: Mapping[str, float], prefix: str) -> dict[int, float]:
    return {int(name.removeprefix(prefix)): value for name, value in line.items() if name.startswith(prefix)}


def _completeness(trace: Trace) -> float | None:
    known = [
        (point.event_completeness, point.num_events) for point in trace.points if point.event_completeness is not None
    ]
    total = sum(number for _, number in known)
    return sum(share * number for share, number in known) / total if total else None


def _check_seeds(name: str, traces: Sequence[Trace]) -> None:
    by_seed: dict[int, Trace] = {}
    for trace in traces:
        other = by_seed.setdefault(trace.seed, trace)
        if other is not trace:
            raise ConfigError(
                f"{other.path} and {trace.path}: both are seed {trace.seed} of {name}; leave one out, or tell them "
                f'apart with --label {trace.path}="..."'
            )
