"""The metrics of a run as columns, followed while it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from viewer_world import append_metrics, make_viewed_run

from srpo_train.metrics import METRICS_FILE, MetricLogger, read_metrics
from srpo_train.viewer.curves import AlarmSpan, Curves


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_viewed_run(tmp_path / "run")


def test_columns_hold_what_the_file_says(run_dir: Path) -> None:
    curves = Curves(run_dir)
    assert curves.update() == 4  # step 0 is the evaluation before training
    found = curves.columns(["rollout/reward_mean", "eval/accuracy", "nothing"])
    assert found["step"] == [0, 1, 2, 3]
    assert found["series"]["rollout/reward_mean"] == [None, 0.1, 0.2, 0.3]
    assert found["series"]["eval/accuracy"] == [line.get("eval/accuracy") for line in read_metrics(run_dir)]
    assert found["series"]["nothing"] == [None] * 4
    assert found["tokens"] == [0, 100, 300, 600]  # 100, 200, 300 tokens were sampled
    assert found["seconds"][-1] - found["seconds"][0] >= 6.0
    assert curves.last_step == 3


def test_a_reader_gets_what_is_new(run_dir: Path) -> None:
    curves = Curves(run_dir)
    curves.update()
    append_metrics(run_dir, 4, rollout__reward_mean=0.7, rollout__num_tokens=50)
    assert curves.update() == 5
    found = curves.columns(["rollout/reward_mean"], after=4)
    assert (found["step"], found["tokens"], found["series"]["rollout/reward_mean"]) == ([4], [650], [0.7])
    assert curves.epoch == 0


def test_a_half_written_line_waits(run_dir: Path) -> None:
    curves = Curves(run_dir)
    curves.update()
    with (run_dir / METRICS_FILE).open("a") as file:
        file.write('{"step":4,"rollout/rew')
        file.flush()
        assert (curves.update(), curves.problem) == (4, "")
        file.write('ard_mean":0.5}\n')
    assert curves.update() == 5


def test_a_resumed_run_begins_a_new_epoch(run_dir: Path) -> None:
    curves = Curves(run_dir)
    curves.update()
    with MetricLogger(run_dir, resume_step=1) as metrics:
        metrics.log(2, {"rollout/reward_mean": 0.9})
        metrics.log(3, {"rollout/reward_mean": 0.9})
    assert (curves.update(), curves.epoch) == (4, 1)
    assert curves.columns(["rollout/reward_mean"])["series"]["rollout/reward_mean"] == [None, 0.1, 0.9, 0.9]


def test_values_that_are_not_finite_are_gaps(run_dir: Path) -> None:
    append_metrics(run_dir, 4, train__loss="nan", train__grad_norm="inf")  # type: ignore[arg-type]
    curves = Curves(run_dir)
    curves.update()
    assert curves.columns(["train/loss", "train/grad_norm"], after=4)["series"] == {
        "train/loss": [None],
        "train/grad_norm": [None],
    }


def test_metrics_are_told_with_their_meaning(run_dir: Path) -> None:
    append_metrics(run_dir, 4, rollout__valid_rate__solver=0.5)
    curves = Curves(run_dir)
    curves.update()
    found = {metric["name"]: metric for metric in curves.names()}
    assert "step" not in found
    assert found["rollout/valid_rate/solver"]["metric"] == "rollout/valid_rate/{role}"
    assert found["rollout/valid_rate/solver"]["unit"] == "share"
    assert found["rollout/valid_rate/solver"]["meaning"] == "Responses of a role that its parser accepted."


def test_alarms_are_spans_and_steps(tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "run", num_steps=5, alarm_at=4)
    append_metrics(run_dir, 6)
    append_metrics(run_dir, 7, alarm__entropy_collapse=1, alarm__engine_gap=1)
    curves = Curves(run_dir)
    curves.update()
    assert curves.alarms() == [
        AlarmSpan("entropy_collapse", 4, 5),
        AlarmSpan("engine_gap", 7, 7),
        AlarmSpan("entropy_collapse", 7, 7),
    ]
    assert curves.alarm_steps() == {"entropy_collapse": [4, 5, 7], "engine_gap": [7]}


def test_a_damaged_or_missing_file_is_told_and_not_fatal(tmp_path: Path) -> None:
    curves = Curves(tmp_path)
    assert (curves.update(), curves.problem, curves.last_step) == (0, "", None)
    (tmp_path / METRICS_FILE).write_text("not json\n")
    assert curves.update() == 0
    assert "not a line of metrics" in curves.problem
