"""The picture of a run: what the team learned, how it behaved, how the update behaved, where the time went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from srpo_train.metrics import names_below, series
from srpo_train.reporting.drawing import (
    ACCENT,
    COLORS,
    FAINT,
    INK,
    SECOND,
    as_percent,
    from_zero,
    legend,
    running_mean,
    titled_figure,
)

_NUM_COLUMNS = 4
_ROW_INCHES = 3.07
_CELLS = (2, 3, 6, 7, 8, 9, 10, 11)
"""Places of the panels every run has; the first four cells of the upper left belong to the accuracy."""

_ENV = "rollout/env/"

Lines = Sequence[Mapping[str, float]]


def draw_curves(lines: Lines, path: Path, title: str, subtitle: str = "") -> None:
    """Draw the curves of a run into one PNG.

    Args:
        lines: What `read_metrics` returned.
        path: Where the picture goes.
        title: Written on top.
        subtitle: Written below it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    measured = _below(lines, _ENV)
    num_rows = 3 + math.ceil(len(measured) / _NUM_COLUMNS)
    height = _ROW_INCHES * num_rows
    with titled_figure(title, subtitle, width=15.5, height=height) as figure:
        margins = {"left": 0.035, "right": 0.988, "top": 1 - 1.06 / height, "bottom": 0.51 / height}
        grid = figure.add_gridspec(num_rows, _NUM_COLUMNS, **margins, hspace=0.42, wspace=0.24)
        cells = [figure.add_subplot(grid[cell // _NUM_COLUMNS, cell % _NUM_COLUMNS]) for cell in _CELLS]
        for panel, draw in zip(cells, _PANELS, strict=True):
            draw(panel, lines)
        for cell, name in enumerate(measured, start=3 * _NUM_COLUMNS):
            cells.append(figure.add_subplot(grid[cell // _NUM_COLUMNS, cell % _NUM_COLUMNS]))
            _draw_measured(cells[-1], lines, name)
        accuracy = figure.add_subplot(grid[0:2, 0:2])
        _draw_accuracy(accuracy, lines)
        for panel in (*cells[4:], accuracy):
            panel.set_xlabel("training step")
        figure.savefig(path)


# --- panels -------------------------------------------------------------------------------------------------------


def _draw_accuracy(panel: Any, lines: Lines) -> None:
    panel.set_title("Held-out accuracy", fontsize=12)
    panel.set_ylim(-0.02, 1.04)
    _smooth_line(panel, lines, "rollout/accuracy", SECOND, "training episodes", width=1.2)
    steps, values = series(lines, "eval/accuracy")
    if steps:
        panel.plot(steps, values, "o-", color=ACCENT, linewidth=2.4, markersize=6, label="held-out tasks", zorder=3)
        for place, offset, align in ((0, (10, -5), "left"), (-1, (0, 10), "right")):
            is_high = place == -1 and values[place] > 0.93
            panel.annotate(
                f"{values[place]:.2f}",
                (steps[place], values[place]),
                textcoords="offset points",
                xytext=(0, -19) if is_high else offset,
                ha=align,
                color=ACCENT,
                fontsize=12,
                fontweight="bold",
            )
    _, at_k = series(lines, "eval/pass_at_k")
    if steps and at_k and at_k != values:
        panel.plot(steps, at_k, ":", color=ACCENT, linewidth=1.2, label="Pass@k")
    is_low = bool(steps) and values[-1] < 0.35
    panel.legend(loc="upper right" if is_low else "lower right", fontsize=9)


def _draw_reward(panel: Any, lines: Lines) -> None:
    panel.set_title("Team reward in training")
    _smooth_line(panel, lines, "rollout/reward_mean", ACCENT, "")


def _draw_valid(panel: Any, lines: Lines) -> None:
    panel.set_title("Valid responses per role")
    _draw_roles(panel, lines, "rollout/valid_rate/")
    low, _ = panel.get_ylim()
    panel.set_ylim(min(low, 0.9), 1.0 + 0.04 * (1.0 - min(low, 0.9)))
    as_percent(panel)


def _draw_length(panel: Any, lines: Lines) -> None:
    panel.set_title("Response length per role (tokens)")
    _draw_roles(panel, lines, "rollout/response_length/")
    from_zero(panel)


def _draw_gradient(panel: Any, lines: Lines) -> None:
    panel.set_title("Gradient norm before clipping")
    _smooth_line(panel, lines, "train/grad_norm", ACCENT, "")
    from_zero(panel)


def _draw_clip(panel: Any, lines: Lines) -> None:
    panel.set_title("Clipped events")
    _smooth_line(panel, lines, "train/clip_fraction", ACCENT, "")
    panel.set_ylim(0, max(0.01, panel.get_ylim()[1]))
    as_percent(panel)


def _draw_entropy(panel: Any, lines: Lines) -> None:
    panel.set_title("Entropy (nats per token)")
    _smooth_line(panel, lines, "train/entropy", ACCENT, "")
    from_zero(panel)


def _draw_cardinality(panel: Any, lines: Lines) -> None:
    panel.set_title("Cardinality K per event type")
    for event_type in _below(lines, "rollout/cardinality/"):
        color = _color_of(lines, event_type)
        _smooth_line(panel, lines, f"rollout/cardinality/{event_type}", color, event_type, raw=False)
    _smooth_line(panel, lines, "train/cardinality_mean", INK, "all events", raw=False)
    panel.set_ylim(0, panel.get_ylim()[1] * 1.4)  # room for the legend
    legend(panel, loc="upper left", ncols=2)


def _draw_measured(panel: Any, lines: Lines, name: str) -> None:
    """Draw what the workflow itself measures: in training, and on held-out tasks."""
    panel.set_title(name.replace("_", " ").capitalize())
    _smooth_line(panel, lines, _ENV + name, SECOND, "training episodes")
    _smooth_line(panel, lines, f"eval/env/{name}", ACCENT, "held-out tasks", raw=False)
    from_zero(panel)
    legend(panel)


def _draw_time(panel: Any, lines: Lines) -> None:
    panel.set_title("Where the time of a step goes")
    steps, shares = time_shares(lines)
    if steps:
        panel.stackplot(
            steps, *shares.values(), labels=list(shares), colors=["#0b6e6e", "#e9b44c", "#5b5fc7", "#d5dbe0"], alpha=0.9
        )
        panel.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
        panel.grid(False)
        panel.legend(loc="lower left", ncols=2, frameon=True, framealpha=0.92, edgecolor="none", handlelength=1.0)
    panel.set_ylim(0, 1)
    as_percent(panel)


_PANELS = (
    _draw_reward,
    _draw_valid,
    _draw_length,
    _draw_cardinality,
    _draw_gradient,
    _draw_clip,
    _draw_entropy,
    _draw_time,
)


# --- how a line is drawn ------------------------------------------------------------------------------------------


def _draw_roles(panel: Any, lines: Lines, prefix: str) -> None:
    for role in _below(lines, prefix):
        _smooth_line(panel, lines, prefix + role, _color_of(lines, role), role, raw=False)
    legend(panel)


def _below(lines: Lines, prefix: str) -> list[str]:
    """The role or event type at the end of each metric below a prefix, sorted."""
    return sorted(name.removeprefix(prefix) for name in names_below(lines, prefix))


def _color_of(lines: Lines, name: str) -> str:
    """The colour of a role or event type; an event type named like a role shares its colour."""
    roles = _below(lines, "rollout/response_length/")
    names = roles + [kind for kind in _below(lines, "rollout/cardinality/") if kind not in roles]
    return COLORS[names.index(name) % len(COLORS)] if name in names else FAINT


def _smooth_line(
    panel: Any, lines: Lines, name: str, color: str, label: str, *, raw: bool = True, width: float = 1.6
) -> None:
    """Plot one metric: its running mean, and faintly the values themselves."""
    steps, values = series(lines, name)
    if not steps:
        return
    if raw:
        panel.plot(steps, values, color=color, alpha=0.28, linewidth=0.9)
    marker = "o-" if len(steps) == 1 else "-"
    panel.plot(steps, running_mean(values), marker, color=color, linewidth=width, label=label or None)


def time_shares(lines: Lines) -> tuple[list[int], dict[str, list[float]]]:
    """Return steps and, for each kind of work, its running-mean share of the step's time; the shares sum to 1."""
    timed = [line for line in lines if line.get("time/step_s", 0.0) > 0.0]
    parts = {
        "generation": [line.get("time/generate_s", 0.0) for line in timed],
        "environments": [line.get("time/env_s", 0.0) for line in timed],
        "update": [line.get("time/update_s", 0.0) for line in timed],
    }
    named = [sum(values) for values in zip(*parts.values(), strict=True)]
    parts["other"] = [max(0.0, line["time/step_s"] - known) for line, known in zip(timed, named, strict=True)]
    smooth = {kind: running_mean(values) for kind, values in parts.items()}
    totals = [sum(values) for values in zip(*smooth.values(), strict=True)]
    shares = {kind: [v / t for v, t in zip(values, totals, strict=True)] for kind, values in smooth.items()}
    return [int(line["step"]) for line in timed], shares
