"""Charts as lines on a plane, ready to be written as SVG: scales, ticks and paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from srpo_envs.errors import MissingExtraError
from srpo_train.reporting.charts import Chart, Curve, Points

WIDTH, HEIGHT = 340.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 10.0, 24.0

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    place: float
    """Along the axis."""
    text: str
    """What it says."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line."""

    run: int
    """Whose colour it has."""
    kind: Literal["raw", "line"]
    """Faint, or the one to look at."""
    path: str
    """The ``d`` of an SVG path."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A point that counts by itself."""

    run: int
    """Whose colour it has."""
    x: float
    """From the left."""
    y: float
    """From the top."""
    text: str
    """What it says when pointed at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A chart as it is drawn; sizes are those of `WIDTH` by `HEIGHT`."""

    x_ticks: tuple[Tick, ...]
    """Below."""
    y_ticks: tuple[Tick, ...]
    """On the left, with a rule across."""
    strokes: tuple[Stroke, ...]
    """Faint ones first."""
    dots: tuple[Dot, ...]
    """On top."""
    left: float = _LEFT
    """Where the rules begin."""
    right: float = WIDTH - _RIGHT
    """Where they end."""
    bottom: float = HEIGHT - _BOTTOM
    """Where the horizontal axis is."""


def draw(chart: Chart) -> Drawing:
    """Return a chart's lines and ticks.

    Raises:
        MissingExtraError: matplotlib, which knows where ticks look well, is not installed.
    """
    points = [point for curve in chart.curves for point in curve.points]
    x_ticks = _ticks([x for x, _ in points], 5, is_whole=True)
    y_ticks = _ticks([y for _, y in points], 4)
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    x = _scale(x_low, x_high, _LEFT, WIDTH - _RIGHT)
    y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    write = _percent if chart.unit == "share" else _short
    return Drawing(
        x_ticks=tuple(Tick(round(x(tick), 2), _short(tick)) for tick in x_ticks if x_low <= tick <= x_high),
        y_ticks=tuple(Tick(round(y(tick), 2), write(tick)) for tick in y_ticks),
        strokes=tuple(sorted(_strokes(chart.curves, x, y), key=lambda stroke: stroke.kind == "line")),
        dots=tuple(dot for curve in chart.curves if not curve.smooth for dot in _dots(curve, x, y)),
    )


def _strokes(curves: Sequence[Curve], x: Scale, y: Scale) -> list[Stroke]:
    found = []
    for curve in curves:
        if curve.smooth:
            found.append(Stroke(curve.run, "raw", _path(curve.points, x, y)))
        found.append(Stroke(curve.run, "line", _path(curve.smooth or curve.points, x, y)))
    return found


def _dots(curve: Curve, x: Scale, y: Scale) -> list[Dot]:
    return [
        Dot(curve.run, round(x(place), 2), round(y(value), 2), f"{_short(place)}: {value:.4g}")
        for place, value in curve.points
    ]


def _path(points: Points, x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x(place):.1f} {y(value):.1f}" for place, value in points)


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (value - low) / ((high - low) or 1.0) * (end - start)


def _ticks(values: Sequence[float], number: int, *, is_whole: bool = False) -> list[float]:
    try:
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise MissingExtraError("matplotlib", "train") from error
    low, high = min(values), max(values)
    high = high if high > low else low + 1
    is_integer = is_whole and high - low >= 1
    return [
        float(tick) for tick in MaxNLocator(number, steps=[1, 2, 2.5, 5, 10], integer=is_integer).tick_values(low, high)
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _short(value: float) -> str:
    """A number in few characters: 1200000 is 1.2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and letter != "k"):
            return f"{value / size:.3g}{letter}"
    return f"{value:.4g}"
