"""`srpo_train.reporting.dynamics` and its figure: bands over seeds, files, and that any run can be drawn."""

from __future__ import annotations

import csv
import struct
from pathlib import Path

import pytest
from report_world import HOSTILE, make_run

from srpo_train.reporting.dynamics import write_dynamics
from srpo_train.reporting.dynamics_figure import band, draw_dynamics
from srpo_train.reporting.traces import read_traces


def norms(*values: float) -> list[dict[str, float]]:
    return [{"train/grad_norm": value} for value in values]


def test_a_band_is_mean_and_sample_deviation_at_the_steps_that_all_seeds_have(tmp_path: Path) -> None:
    make_run(tmp_path / "a0", "seed=0", steps=norms(1.0, 2.0, 9.0))
    make_run(tmp_path / "a1", "seed=1", steps=[{**step, "rollout/num_tokens": 400.0} for step in norms(3.0, 2.0)])
    traces = read_traces([tmp_path])["Setwise SRPO"]
    found = band(traces, lambda point: point.grad_norm)
    assert (found.x, found.mean) == ((1.0, 2.0), (2.0, 2.0))
    assert found.std == pytest.approx((2**0.5, 0.0))
    assert band(traces, lambda point: point.grad_norm, "tokens").x == pytest.approx((0.3, 0.6))  # thousands
    assert band(traces, lambda point: point.grad_norm, "time").x == (0.5, 1.0)  # minutes
    alone = band(traces[:1], lambda point: point.grad_norm)
    assert (alone.mean, alone.std) == ((1.0, 2.0, 9.0), ())


def test_every_step_and_every_statistic_are_in_files(tmp_path: Path) -> None:
    steps = [{"train/log_ratio_var/k3": 0.5, "train/log_ratio_cov/k3": 0.25}, {"train/log_ratio_var/k1": 0.125}]
    run = make_run(tmp_path / "a", steps=steps, evaluations={0: (0.25, 0.5)})
    table, files = write_dynamics([run], tmp_path / "out", labels={run: "mine, all of it"})
    assert [file.name for file in files] == ["dynamics.png", "dynamics.csv", "dynamics-statistics.csv", "dynamics.md"]
    with files[1].open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == ["0", "1", "2"]
    assert {line["method"] for line in lines} == {"mine, all of it"}
    assert (lines[0]["validation"], lines[0]["grad_norm"]) == ("0.25", "")
    assert (lines[1]["variance_k3"], lines[1]["covariance_k3"], lines[1]["variance_k1"]) == ("0.5", "0.25", "")
    with files[2].open(newline="") as file:
        (statistics,) = csv.DictReader(file)
    assert (statistics["run"], statistics["proxy_last"]) == ("mine, all of it, seed 0", "20.0")
    text = files[3].read_text()
    assert text.startswith("![Training dynamics](dynamics.png)\n")
    assert "| mine, all of it, seed 0 | 0.500 | 25.0 | 1.000 | \\[1.000, 1.000\\] | 0.000 | 2.000 | 2.000 " in text
    assert "quoted from the paper" in text
    assert [bool(block.title) for block in table.blocks] == [False, True]


def test_anything_can_be_drawn(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "one-step"),
        make_run(tmp_path / "bare", "optim.lr=1e-3", steps=[{"train/grad_norm": 50.0}] * 2),
        make_run(tmp_path / "zero", "optim.lr=1e-2", steps=[{"rollout/num_events": 0.0, "train/grad_norm": 0.0}]),
    ]
    labels = dict(zip(runs, ("$x$ \\frac{", HOSTILE[1], "x" * 200), strict=True))
    picture = tmp_path / "all.png"
    draw_dynamics(read_traces(runs, labels), picture, "time")
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height > 900) == (2015, True)
