"""The picture of a study: a panel for each workflow, a curve for each way of sharing, the single agent beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srpo_train.reporting.drawing import COLORS, FAINT, as_percent, titled_figure
from srpo_train.reporting.tables import plain

if TYPE_CHECKING:
    from srpo_train.study.results import StudyResult

_COLOR = {"shared": COLORS[0], "isolated": COLORS[1], "mixed": COLORS[2]}
_PANELS_A_ROW = 3
_PANEL_WIDTH, _PANEL_HEIGHT, _TITLE_INCHES = 4.6, 3.0, 0.9


def draw_study(results: Sequence[StudyResult], path: Path) -> None:
    """Draw held-out accuracy over training as PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    panels = _panels(results)
    num_columns = min(_PANELS_A_ROW, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    height = num_rows * _PANEL_HEIGHT + _TITLE_INCHES
    subtitle = "held-out Avg@k over training; bands are one standard deviation over seeds"
    with titled_figure(
        "When does training a team pay?", subtitle, width=num_columns * _PANEL_WIDTH, height=height
    ) as figure:
        axes = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True)
        for panel, (title, members) in zip(axes.flat, panels.items(), strict=False):
            _draw_panel(panel, title, members)
        for panel in axes.flat[len(panels) :]:
            panel.set_visible(False)
        for panel in axes.flat[: len(panels)]:
            panel.legend(loc="lower right", handlelength=1.2)
        figure.subplots_adjust(
            left=0.5 / (num_columns * _PANEL_WIDTH),
            right=0.99,
            top=1 - (_TITLE_INCHES + 0.1) / height,
            bottom=0.45 / height,
            hspace=0.42,
            wspace=0.08,
        )
        figure.savefig(path)


def _panels(results: Sequence[StudyResult]) -> Mapping[str, list[StudyResult]]:
    """The curves of each panel: a workflow on a task with a model, and the control of these two."""
    controls = {result.setting: result for result in results if result.is_control}
    panels: dict[str, list[StudyResult]] = {}
    for result in results:
        if not result.is_control:
            title = f"{result.cell.settings['workflow']} · {' · '.join(result.setting)}"
            panels.setdefault(title, []).append(result)
    for members in panels.values():
        if control := controls.get(members[0].setting):
            members.append(control)
    return panels or {" · ".join(setting): [control] for setting, control in controls.items()}


def _draw_panel(panel: Any, title: str, members: Sequence[StudyResult]) -> None:
    for result in members:
        sharing = result.cell.settings["sharing"]
        steps, mean, spread = _curve(result)
        color, style = (_COLOR[sharing], "-") if sharing else (FAINT, "--")
        panel.plot(steps, mean, color=color, linestyle=style, label=sharing or result.cell.settings["workflow"])
        low = [value - half for value, half in zip(mean, spread, strict=True)]
        high = [value + half for value, half in zip(mean, spread, strict=True)]
        panel.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    panel.set_title(plain(title))
    panel.set_xlabel("training step")
    as_percent(panel)


def _curve(result: StudyResult) -> tuple[list[int], list[float], list[float]]:
    """Mean and sample standard deviation over the seeds, at the steps that all of them evaluated."""
    by_step = [dict(zip(run.steps, run.scores, strict=True)) for run in result.runs]
    steps = sorted(set(by_step[0]).intersection(*by_step[1:]))
    values = [[found[step] for found in by_step] for step in steps]
    spread = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in values]
    return steps, [statistics.fmean(column) for column in values], spread
