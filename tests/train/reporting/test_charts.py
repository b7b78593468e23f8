"""`srpo_train.reporting.charts` and `svg`: which curves there are, where their points lie, and what the axes say."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_train.metrics import check_name
from srpo_train.reporting import charts
from srpo_train.reporting.charts import Chart, Curve, chart_groups, thinned
from srpo_train.reporting.svg import HEIGHT, WIDTH, draw


def line(step: int, **values: float) -> dict[str, float]:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return {"step": step, "rollout/num_tokens": 100.0, "time/step_s": 1800.0, **named}


def curves_of(runs: list[list[dict[str, float]]], name: str, axis: charts.Axis = "step") -> list[Curve]:
    groups, _ = chart_groups(runs, axis)
    (chart,) = [chart for group in groups for chart in group.charts if chart.name == name]
    return list(chart.curves)


def chart(*points: tuple[float, float], unit: str = "-", smooth: bool = False) -> Chart:
    curve = Curve(run=0, points=points, smooth=points if smooth else ())
    return Chart(name="x", meaning="y", unit=unit, curves=(curve,))


def test_every_metric_that_is_drawn_exists() -> None:
    for _, names in charts._GROUPS:
        for name in names:
            check_name(name + ("k3" if "var" in name else "any") if name.endswith("/") else name)


@pytest.mark.parametrize(
    ("axis", "places"), [("step", [1, 2, 3]), ("tokens", [100, 200, 300]), ("time", [0.5, 1.0, 1.5])]
)
def test_points_lie_where_the_axis_says(axis: charts.Axis, places: list[float]) -> None:
    run = [line(step, train__grad_norm=step / 2) for step in (1, 2, 3)]
    (curve,) = curves_of([run], "train/grad_norm", axis)
    assert [x for x, _ in curve.points] == places
    assert [y for _, y in curve.points] == [0.5, 1.0, 1.5]
    assert [y for _, y in curve.smooth] == [0.5, 1.0, 1.5]  # means of 1, 3 and 1 values of a straight line


def test_runs_keep_their_colour_where_one_of_them_lacks_a_metric() -> None:
    without = [line(1), line(2)]
    with_it = [line(1, train__entropy=1.0), line(2, train__entropy=2.0)]
    assert [curve.run for curve in curves_of([without, with_it], "train/entropy")] == [1]


def test_what_is_not_finite_has_no_point_and_what_never_changed_no_chart() -> None:
    run = [line(step, train__grad_norm=value, rollout__reward_mean=0.25) for step, value in enumerate([1, math.nan, 2])]
    groups, flat = chart_groups([run])
    assert flat == {"rollout/reward_mean": 0.25, "time/step_s": 1800.0}
    assert [x for x, _ in curves_of([run], "train/grad_norm")[0].points] == [0, 2]
    assert all(chart.name not in flat for group in groups for chart in group.charts)


def test_evaluations_are_not_smoothed() -> None:
    run = [line(step, eval__avg_at_k=step / 10) for step in range(5)]
    assert curves_of([run], "eval/avg_at_k")[0].smooth == ()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000))
def test_a_thinned_line_is_short_and_keeps_ends_and_range(values: list[float]) -> None:
    points = list(enumerate(values))
    short = thinned(points)
    assert len(short) <= 300
    assert (short[0], short[-1]) == (points[0], points[-1])
    assert [x for x, _ in short] == sorted(x for x, _ in short)
    assert min(values) - 1e-6 <= min(y for _, y in short) <= max(y for _, y in short) <= max(values) + 1e-6


def test_the_mean_of_what_is_thinned_stays() -> None:
    short = thinned([(place, float(place % 2)) for place in range(602)])
    # 600 inner points in 298 places: three go into one, which leaves 200 means of 1/3 or 2/3
    assert len(short) == 202
    assert {round(y, 3) for _, y in short[1:-1]} == {0.333, 0.667}


# --- drawing ------------------------------------------------------------------------------------------------------


def test_a_line_goes_from_corner_to_corner() -> None:
    drawing = draw(chart((0, 0.0), (10, 1.0)))
    assert [stroke.path for stroke in drawing.strokes] == ["M46.0 166.0L330.0 10.0"]
    assert [(dot.x, dot.y) for dot in drawing.dots] == [(46.0, 166.0), (330.0, 10.0)]
    assert (drawing.left, drawing.right, drawing.bottom) == (46.0, 330.0, 166.0)
    assert [tick.text for tick in drawing.x_ticks] == ["0", "2", "4", "6", "8", "10"]
    assert [tick.text for tick in drawing.y_ticks] == ["0", "0.25", "0.5", "0.75", "1"]
    assert [tick.place for tick in drawing.y_ticks] == [166.0, 127.0, 88.0, 49.0, 10.0]


def test_shares_are_percent_and_large_numbers_short() -> None:
    assert [tick.text for tick in draw(chart((0, 0.0), (1, 0.1), unit="share")).y_ticks][:2] == ["0%", "2.5%"]
    drawing = draw(chart((0, 0.0), (4_000_000, 40_000.0)))
    assert [tick.text for tick in drawing.x_ticks] == ["0", "1M", "2M", "3M", "4M"]
    assert [tick.text for tick in drawing.y_ticks] == ["0", "10k", "20k", "30k", "40k"]


def test_a_smoothed_line_lies_on_top_of_what_was_measured() -> None:
    drawing = draw(chart((0, 1.0), (1, 2.0), (2, 4.0), smooth=True))
    assert [stroke.kind for stroke in drawing.strokes] == ["raw", "line"]
    assert drawing.dots == ()


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e9, 1e9)), min_size=1, max_size=20, unique_by=lambda p: p[0])
)
def test_nothing_is_drawn_outside_the_picture(points: list[tuple[int, float]]) -> None:
    drawing = draw(chart(*sorted(points)))
    numbers = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", drawing.strokes[0].path)]
    assert len(numbers) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in numbers)
    assert all(0 <= tick.place <= WIDTH for tick in drawing.x_ticks)
    assert all(-0.01 <= tick.place <= HEIGHT for tick in drawing.y_ticks)
