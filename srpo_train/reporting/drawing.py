"""How every picture looks: colours, type, a titled figure, and what panels share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from srpo_envs.errors import MissingExtraError
from srpo_train.reporting.tables import plain

INK = "#22303c"
FAINT = "#8a97a3"
GRID = "#e6eaee"
ACCENT = "#0b6e6e"
SECOND = "#d9772b"
COLORS = ("#0b6e6e", "#d9772b", "#5b5fc7", "#b8385e", "#6b8e23", "#946b2d", "#3b8bc2", "#7a7a7a")
"""Told apart also by people who do not see red and green as different; roles keep theirs in every panel."""

STYLE: Any = {
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # names are texts, whatever dollar signs they hold
    "axes.labelcolor": FAINT,
    "axes.edgecolor": "#c3ccd4",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlepad": 8,
    "axes.labelsize": 8,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextlib.contextmanager
def titled_figure(title: str, subtitle: str, *, width: float, height: float) -> Iterator[Any]:
    """Yield a figure in the project's style with two lines of text on top; sizes are inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "train") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=130)
        figure.text(0.012, 1 - 0.26 / height, title, fontsize=16, fontweight="bold", va="center")
        figure.text(0.012, 1 - 0.52 / height, subtitle, fontsize=10, color=FAINT, va="center")
        yield figure


def legend_name(name: str) -> str:
    """Return a name for a legend: one visible line, without the underscore in front that would leave it out."""
    return plain(name).replace("_", " ", 1) if name.startswith("_") else plain(name)


def legend(panel: Any, **where: Any) -> None:
    """Give a panel a legend if any line of it has a name."""
    if panel.get_legend_handles_labels()[0]:
        panel.legend(handlelength=1.2, **{"loc": "best", **where})


def from_zero(panel: Any) -> None:
    """Let the vertical axis begin at 0."""
    panel.set_ylim(0, panel.get_ylim()[1] * 1.06)


def as_percent(panel: Any) -> None:
    """Write the vertical axis, which holds shares, in percent."""
    from matplotlib.ticker import PercentFormatter

    low, high = panel.get_ylim()
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None if high - low < 0.1 else 0))


def running_mean(values: Sequence[float], window: int = 7) -> list[float]:
    """Return the mean around each value, over fewer of them towards both ends."""
    half = window // 2
    means = []
    for place in range(len(values)):
        reach = min(half, place, len(values) - 1 - place)
        part = values[place - reach : place + reach + 1]
        means.append(sum(part) / len(part))
    return means
