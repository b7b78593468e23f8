"""The picture of scores against budget: several methods at equal cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from srpo_train.evaluation.budget_curve import CurvePoint
from srpo_train.reporting.drawing import COLORS, FAINT, as_percent, from_zero, legend, legend_name, titled_figure

Curves = Mapping[str, Sequence[CurvePoint]]

_LABELS = {
    "team_tokens": "budget of team tokens per episode",
    "calls": "budget of policy calls per episode",
    "turns": "budget of turns per episode",
    "tool_calls": "budget of tool calls per episode",
}
_SPENT = {"calls": "calls_per_query", "tool_calls": "tool_calls_per_query"}
_WIDTH, _HEIGHT = 16.0, 4.3  # inches
_WIDE = 6  # of the largest to the smallest budget, from where a logarithmic axis reads better


def draw_budget_curves(curves: Curves, path: Path, *, samples: int, subtitle: str = "") -> None:
    """Draw Avg@k, Pass@k, utility and what was really spent against the budget, a colour for each method.

    Args:
        curves: Points by method; all with the same limit.
        path: Where the picture goes.
        samples: k.
        subtitle: Written below the title.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    limit = next(iter(curves.values()))[0].limit
    with titled_figure(f"Avg@{samples} at equal cost", subtitle, width=_WIDTH, height=_HEIGHT) as figure:
        margins = {"left": 0.035, "right": 0.988, "top": 1 - 1.05 / _HEIGHT, "bottom": 0.55 / _HEIGHT}
        panels = [figure.add_subplot(cell) for cell in figure.add_gridspec(1, 4, **margins, wspace=0.24)]
        _draw_share(panels[0], curves, f"Avg@{samples}", "avg_at_k")
        _draw_share(panels[1], curves, f"Pass@{samples}", "pass_at_k")
        _draw_lines(panels[2], curves, "Successes per million tokens", "utility")
        _draw_spent(panels[3], curves, limit)
        for panel in panels:
            _mark_budgets(panel, curves)
            panel.set_xlabel(_LABELS[limit])
        legend(panels[0])
        figure.savefig(path)


def _draw_lines(panel: Any, curves: Curves, title: str, name: str) -> None:
    panel.set_title(title)
    for color, (method, points) in zip(_colors(curves), curves.items(), strict=True):
        panel.plot(*_known(points, name), "o-", color=color, markersize=4, label=legend_name(method))
    from_zero(panel)


def _draw_share(panel: Any, curves: Curves, title: str, name: str) -> None:
    _draw_lines(panel, curves, title, name)
    if name == "avg_at_k":
        for color, points in zip(_colors(curves), curves.values(), strict=True):
            _draw_band(panel, points, color)
    as_percent(panel)


def _draw_band(panel: Any, points: Sequence[CurvePoint], color: str) -> None:
    """One standard deviation over seeds to both sides."""
    bands = [(p.amount, p.avg_at_k, p.avg_at_k_std) for p in points if p.avg_at_k is not None and p.avg_at_k_std]
    if len(bands) > 1:
        amounts, means, stds = zip(*bands, strict=True)
        low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
        panel.fill_between(amounts, low, high, color=color, alpha=0.15, linewidth=0)


def _draw_spent(panel: Any, curves: Curves, limit: str) -> None:
    spent = _SPENT.get(limit, "tokens_per_query")
    told = spent.removesuffix("_per_query").replace("_", " ")
    _draw_lines(panel, curves, f"{told.capitalize()} really spent per episode", spent)
    if limit != "turns":
        top = panel.get_ylim()[1]
        amounts = _amounts(curves)
        panel.plot(amounts, amounts, ":", color=FAINT, linewidth=1.2, label="all of the budget")
        panel.set_ylim(0, top)
        panel.legend(panel.get_lines()[-1:], ["all of the budget"], loc="lower right", handlelength=1.2)


def _mark_budgets(panel: Any, curves: Curves) -> None:
    """Write the budgets on the axis; evenly spaced where they grow by factors."""
    from matplotlib.ticker import NullLocator

    amounts = _amounts(curves)
    if amounts[0] > 0 and amounts[-1] / amounts[0] >= _WIDE:
        panel.set_xscale("log", base=2)
    panel.set_xticks(amounts, [f"{amount:,}" for amount in amounts])
    panel.xaxis.set_minor_locator(NullLocator())


def _amounts(curves: Curves) -> list[int]:
    return sorted({point.amount for points in curves.values() for point in points})


def _known(points: Sequence[CurvePoint], name: str) -> tuple[list[int], list[float]]:
    known = [(point.amount, getattr(point, name)) for point in points if getattr(point, name) is not None]
    return [amount for amount, _ in known], [value for _, value in known]


def _colors(curves: Curves) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(len(curves))]
