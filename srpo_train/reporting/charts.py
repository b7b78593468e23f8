"""Curves of several runs as data: which metrics a report shows, against what, and the points of each line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from srpo_train.metrics import meaning_of, names_below, unit_of
from srpo_train.reporting.drawing import running_mean

Axis = Literal["step", "tokens", "time"]
Lines = Sequence[Mapping[str, float]]
Points = tuple[tuple[float, float], ...]

AXES: Mapping[Axis, str] = {
    "step": "training step",
    "tokens": "tokens sampled in training",
    "time": "hours of training",
}
"""What curves are drawn against, as it is written below them."""

_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "What the team learned",
        ("eval/avg_at_k", "eval/pass_at_k", "rollout/accuracy", "rollout/reward_mean", "eval/env/", "rollout/env/"),
    ),
    (
        "How the team behaved",
        (
            "rollout/valid_rate/",
            "rollout/response_length/",
            "rollout/cardinality/",
            "rollout/tokens_per_query",
            "rollout/zero_variance_groups",
        ),
    ),
    (
        "How the update behaved",
        ("train/grad_norm", "train/clip_fraction", "train/entropy", "train/ratio_max", "train/log_ratio_var/"),
    ),
    ("What a step takes", ("time/step_s", "perf/tokens_per_s")),
)
"""Headings, and metrics below them; a slash at the end stands for all names that begin so."""

_MAX_POINTS = 300  # of one line: more than a small picture has room for


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric of one run."""

    run: int
    """Number of the run, from 0: its colour."""
    points: Points
    """As measured, thinned where there are very many."""
    smooth: Points
    """The running mean; empty where every point counts, as of an evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One metric of all runs that have it."""

    name: str
    """Of the metric."""
    meaning: str
    """Its sentence."""
    unit: str
    """What one is."""
    curves: tuple[Curve, ...]
    """By run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartGroup:
    """Charts under one heading."""

    title: str
    """The heading."""
    charts: tuple[Chart, ...]
    """In order."""


def chart_groups(runs: Sequence[Lines], axis: Axis = "step") -> tuple[list[ChartGroup], dict[str, float]]:
    """Return the charts of runs, and the metrics that never changed, which have none, with their value.

    Args:
        runs: What `read_metrics` returned, for each run.
        axis: What the curves are drawn against.
    """
    groups, flat = [], {}
    for title, names in _GROUPS:
        charts = []
        for name in _present(runs, names):
            chart = _chart(runs, name, axis)
            values = {value for curve in chart.curves for _, value in curve.points}
            if len(values) > 1:
                charts.append(chart)
            elif values:
                flat[name] = values.pop()
        if charts:
            groups.append(ChartGroup(title=title, charts=tuple(charts)))
    return groups, flat


def _present(runs: Sequence[Lines], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        found = dict.fromkeys(known for lines in runs for known in names_below(lines, name))
        yield from found if name.endswith("/") else [name] * (name in found)


def _chart(runs: Sequence[Lines], name: str, axis: Axis) -> Chart:
    curves = (_curve(number, lines, name, axis) for number, lines in enumerate(runs))
    return Chart(
        name=name,
        meaning=meaning_of(name),
        unit=unit_of(name),
        curves=tuple(curve for curve in curves if curve.points),
    )


def _curve(number: int, lines: Lines, name: str, axis: Axis) -> Curve:
    places = _places(lines, axis)
    points = [
        (place, line[name])
        for place, line in zip(places, lines, strict=True)
        if math.isfinite(line.get(name, math.nan))  # a gradient that was not finite has no place on an axis
    ]
    values = [value for _, value in points]
    is_rare = name.startswith("eval/") or len(points) < 3
    smooth = () if is_rare else thinned(list(zip((x for x, _ in points), running_mean(values), strict=True)))
    return Curve(run=number, points=thinned(points), smooth=smooth)


def _places(lines: Lines, axis: Axis) -> list[float]:
    """Where each line of a log stands on the axis."""
    spent: Mapping[Axis, Callable[[Mapping[str, float]], float]] = {
        "tokens": lambda line: line.get("rollout/num_tokens", 0.0),
        "time": lambda line: line.get("time/step_s", 0.0) / 3600,
    }
    if axis == "step":
        return [line["step"] for line in lines]
    return list(accumulate(map(spent[axis], lines)))


def thinned(points: Sequence[tuple[float, float]]) -> Points:
    """Return at most so many points that a line can show: means of neighbours, the first and the last as they are."""
    if len(points) <= _MAX_POINTS:
        return tuple(points)
    inner = points[1:-1]
    size = math.ceil(len(inner) / (_MAX_POINTS - 2))
    parts = [inner[start : start + size] for start in range(0, len(inner), size)]
    means = [(math.fsum(x for x, _ in part) / len(part), math.fsum(y for _, y in part) / len(part)) for part in parts]
    return (points[0], *means, points[-1])
