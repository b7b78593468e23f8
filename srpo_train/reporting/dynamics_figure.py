"""The picture of training dynamics after the paper's Figure 3: small panels, runs overlaid, one colour a method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from srpo_train.reporting.drawing import COLORS, as_percent, legend_name, running_mean, titled_figure
from srpo_train.reporting.traces import Point, Trace, variation

Axis = Literal["step", "tokens", "time"]
"""What a curve is drawn against: training steps, sampled training tokens, or time in training steps."""

_WIDTH, _ROW_INCHES, _TITLE_INCHES, _LEGEND_INCHES, _FOOT_INCHES = 15.5, 3.07, 0.72, 0.22, 0.51
_LEGEND_CHARACTERS = 190  # names and marks beside each other that fill the width
_STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)))
"""Of lines; the next one when the colours have been used up."""

_AXES: Mapping[Axis, tuple[str, Callable[[Point], float]]] = {
    "step": ("training step", lambda point: float(point.step)),
    "tokens": ("sampled training tokens (thousands)", lambda point: point.tokens / 1e3),
    "time": ("minutes of training steps", lambda point: point.time_s / 60),
}

_Read = Callable[[Point], float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """One quantity of one method: over its seeds at each step they all have, or of its only run."""

    x: tuple[float, ...]
    """Where; mean over seeds."""
    mean: tuple[float, ...]
    """Mean over seeds."""
    std: tuple[float, ...]
    """Sample standard deviation over seeds; empty for a single run."""


def band(traces: Sequence[Trace], read: _Read, axis: Axis = "step") -> Band:
    """Return a quantity's mean and deviation over seeds."""
    place = _AXES[axis][1]
    by_step = [
        {point.step: (place(point), value) for point in trace.points if (value := read(point)) is not None}
        for trace in traces
    ]
    steps = sorted(set(by_step[0]).intersection(*by_step[1:]))
    columns = [[found[step] for found in by_step] for step in steps]
    values = [[value for _, value in column] for column in columns]
    return Band(
        x=tuple(statistics.fmean(x for x, _ in column) for column in columns),
        mean=tuple(map(statistics.fmean, values)),
        std=tuple(map(statistics.stdev, values)) if len(traces) > 1 else (),
    )


def draw_dynamics(methods: Mapping[str, Sequence[Trace]], path: Path, axis: Axis = "step") -> None:
    """Draw the training dynamics of one or more methods into one PNG.

    Args:
        methods: What `read_traces` returned.
        path: Where the picture goes.
        axis: What is drawn against.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names = [_name(name, traces) for name, traces in methods.items()]
    num_columns = _legend_columns(names)
    above = _TITLE_INCHES + _LEGEND_INCHES * math.ceil(len(names) / num_columns)
    height = above + 0.1 + 2 * _ROW_INCHES + _FOOT_INCHES
    with titled_figure("Training dynamics", _subtitle(methods), width=_WIDTH, height=height) as figure:
        margins = {"left": 0.035, "right": 0.988, "top": 1 - (above + 0.42) / height, "bottom": _FOOT_INCHES / height}
        grid = figure.add_gridspec(2, 4, **margins, hspace=0.34, wspace=0.22)
        panels = [figure.add_subplot(grid[cell // 4, cell % 4]) for cell in range(8)]
        for panel, draw in zip(panels, _PANELS, strict=True):
            draw(panel, methods, axis)
        for panel in panels[4:]:
            panel.set_xlabel(_AXES[axis][0])
        lines = [panels[0].plot([], [], **_look(index), linewidth=2.4)[0] for index in range(len(methods))]
        place = (0.005, 1 - (_TITLE_INCHES - 0.02) / height)
        figure.legend(lines, names, loc="upper left", bbox_to_anchor=place, ncols=num_columns, fontsize=9.5)
        figure.savefig(path)


def _subtitle(methods: Mapping[str, Sequence[Trace]]) -> str:
    has_seeds = any(len(traces) > 1 for traces in methods.values())
    seeds = "; bands are ± one standard deviation over seeds" if has_seeds else ""
    return f"Running means, the values of each step faint{seeds}; dotted is the part of Var(L) from covariance (eq. 5)"


def _legend_columns(names: Sequence[str]) -> int:
    widths = [len(name) + 6 for name in names]
    return len(names) if sum(widths) <= _LEGEND_CHARACTERS else max(1, _LEGEND_CHARACTERS // max(widths))


def _name(name: str, traces: Sequence[Trace]) -> str:
    return legend_name(f"{name} (n={len(traces)})" if len(traces) > 1 else name)


# --- panels -------------------------------------------------------------------------------------------------------


def _draw_score(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    panel.set_title("Training score (mean team reward)")
    _draw_all(panel, methods, lambda point: point.score, axis)


def _draw_validation(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    panel.set_title("Validation Avg@k")
    for index, traces in enumerate(methods.values()):
        _draw_band(panel, band(traces, lambda point: point.validation, axis), index, is_smooth=False)
    as_percent(panel)


def _draw_gradient(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    panel.set_title("Gradient norm before clipping")
    _draw_all(panel, methods, lambda point: point.grad_norm, axis)
    norms = [[norm for trace in traces for norm in trace.values(lambda p: p.grad_norm)] for traces in methods.values()]
    _scale(panel, norms)
    _write(panel, [_range(found, traces) for found, traces in zip(norms, methods.values(), strict=True)])


def _draw_length(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    panel.set_title("Response length T (tokens)")
    _draw_all(panel, methods, lambda point: point.response_length, axis)


def _draw_active_set(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    panel.set_title("Active-set size K")
    _draw_all(panel, methods, lambda point: point.active_set, axis)


def _draw_proxy(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    panel.set_title("Cost proxy K·T (tokens per event)")
    bands = _draw_all(panel, methods, lambda point: point.cost_proxy, axis)
    _write(panel, [f"{found.mean[0]:,.1f} → {found.mean[-1]:,.1f}" if found.mean else "" for found in bands])


def _draw_completeness(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    panel.set_title("Complete events")
    _draw_all(panel, methods, lambda point: point.event_completeness, axis)
    low, _ = panel.get_ylim()
    low = min(low, 0.95)
    panel.set_ylim(low, 1 + 0.05 * (1 - low))
    as_percent(panel)


def _draw_variance(panel: Any, methods: Mapping[str, Sequence[Trace]], axis: Axis) -> None:
    """Eq. 5 at the largest cardinality of each method, for events of several members are what it is about."""
    panel.set_title("Var(L) at the largest K (nats²)")
    names, ends = [], [0.0]
    for index, traces in enumerate(methods.values()):
        size = max((trace.largest_set for trace in traces if trace.largest_set), default=None)
        names.append(f"K = {size}" if size else "")
        if size:
            whole, part = (band(traces, _of_size(size, read), axis) for read in (_variance, _covariance))
            _draw_band(panel, whole, index)
            smooth = running_mean(part.mean, _window(part))
            panel.plot(part.x, smooth, color=_look(index)["color"], linestyle=":", linewidth=1.4)
            ends += smooth + running_mean(whole.mean, _window(whole))
    margin = 0.06 * (max(ends) - min(ends)) or 1.0
    panel.set_ylim(min(ends) - margin, max(ends) + 2 * margin)  # single steps may reach far beyond
    _write(panel, names)


def _variance(point: Point) -> Mapping[int, float]:
    return point.variance


def _covariance(point: Point) -> Mapping[int, float]:
    return point.covariance


def _of_size(size: int, read: Callable[[Point], Mapping[int, float]]) -> _Read:
    return lambda point: read(point).get(size)


_PANELS = (
    _draw_score,
    _draw_validation,
    _draw_gradient,
    _draw_variance,
    _draw_length,
    _draw_active_set,
    _draw_proxy,
    _draw_completeness,
)


# --- how a line is drawn ------------------------------------------------------------------------------------------


def _draw_all(panel: Any, methods: Mapping[str, Sequence[Trace]], read: _Read, axis: Axis) -> list[Band]:
    bands = [band(traces, read, axis) for traces in methods.values()]
    for index, found in enumerate(bands):
        _draw_band(panel, found, index)
    return bands


def _draw_band(panel: Any, found: Band, index: int, *, is_smooth: bool = True) -> None:
    """One method's line: smooth over its faint values and deviation, or with a mark at each value."""
    look = _look(index)
    if is_smooth:
        panel.plot(found.x, found.mean, color=look["color"], alpha=0.28, linewidth=0.9)
    mean, std = (running_mean(values, _window(found)) if is_smooth else values for values in (found.mean, found.std))
    has_marks = not is_smooth or len(found.x) == 1
    panel.plot(found.x, mean, marker="o" if has_marks else None, markersize=3.5, **look)
    if std:
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        panel.fill_between(found.x, low, high, color=look["color"], alpha=0.14, linewidth=0)


def _window(found: Band) -> int:
    """Steps in a running mean: a fifteenth of the run, but not under 7."""
    return max(7, len(found.x) // 15)


def _look(index: int) -> dict[str, Any]:
    color, style = index % len(COLORS), index // len(COLORS) % len(_STYLES)
    return {"color": COLORS[color], "linestyle": _STYLES[style]}


def _scale(panel: Any, groups: Sequence[Sequence[float]]) -> None:
    """A logarithmic axis where methods are a factor of ten apart, which would lie flat on a linear one."""
    centres = [statistics.median(group) for group in groups if group]
    if len(centres) > 1 and min(centres) > 0 and max(centres) > 10 * min(centres):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())


def _range(norms: Sequence[float], traces: Sequence[Trace]) -> str:
    if not norms:
        return ""
    found = [cv for trace in traces if (cv := variation(trace.values(lambda point: point.grad_norm))) is not None]
    spread = f"  CV {statistics.fmean(found):.3f}" if found else ""
    return f"[{min(norms):.3g}, {max(norms):.3g}]{spread}"


def _write(panel: Any, texts: Sequence[str]) -> None:
    """Write a line for each method into a panel, in its colour, above the curves."""
    shown = [(index, text) for index, text in enumerate(texts) if text]
    low, high = panel.get_ylim()
    room = 1 + 0.09 * len(shown)
    if panel.get_yscale() == "log":
        panel.set_ylim(low, high * (high / low) ** (room - 1))
    else:
        panel.set_ylim(low, low + (high - low) * room)
    for line, (index, text) in enumerate(shown):
        panel.text(
            0.98,
            0.97 - 0.075 * line,
            text,
            transform=panel.transAxes,
            ha="right",
            va="top",
            fontsize=8,
            color=_look(index)["color"],
        )
