"""`srpo_train.metrics`: stable names, and a log that survives a kill."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from srpo_envs.errors import RecordError, UnknownIdError
from srpo_train.metrics import (
    TABLE,
    MetricLogger,
    check_name,
    is_timing,
    names_below,
    read_metrics,
    series,
    without_timing,
)


def logged(run_dir: Path, steps: range, resume_step: int | None = None) -> None:
    with MetricLogger(run_dir, resume_step) as metrics:
        for step in steps:
            metrics.log(step, {"train/loss": step / 3, "rollout/num_events": step})


def test_names_are_unique_explained_and_recognised_with_their_holes_filled() -> None:
    names = [metric.name for metric in TABLE]
    assert len(set(names)) == len(names)
    assert all(metric.unit and metric.meaning.endswith(".") for metric in TABLE)
    for name in ("train/log_ratio_var/k3", "rollout/valid_rate/solver", "train/grad_norm/team", "train/grad_norm"):
        check_name(name)


@pytest.mark.parametrize("name", ["train/los", "train/log_ratio_var/kx", "rollout/valid_rate/", "xtrain/loss", "loss"])
def test_a_name_outside_the_table_is_refused(name: str) -> None:
    with pytest.raises(UnknownIdError, match="no metric"):
        check_name(name)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownIdError, match="did you mean 'train/clip_fraction'"):
        check_name("train/clip_fractions")


def test_only_time_and_perf_may_differ_between_equal_runs() -> None:
    assert [is_timing(name) for name in ("time/env_s", "perf/tokens_per_s", "train/loss", "rollout/num_tokens")] == [
        True,
        True,
        False,
        False,
    ]
    assert without_timing({"step": 1, "time/env_s": 2.0, "train/loss": 3.0}) == {"step": 1, "train/loss": 3.0}


def test_values_come_back_bit_for_bit_and_counts_stay_whole(tmp_path: Path) -> None:
    values = {"train/loss": 0.1 + 0.2, "train/grad_norm": 5e-324, "rollout/num_events": 7}
    with MetricLogger(tmp_path) as metrics:
        metrics.log(1, values)
    (line,) = read_metrics(tmp_path)
    assert line == {"step": 1, **values}
    assert isinstance(line["rollout/num_events"], int)


def test_values_that_are_not_finite_are_valid_json_and_come_back(tmp_path: Path) -> None:
    with MetricLogger(tmp_path) as metrics:
        metrics.log(1, {"train/loss": math.nan, "train/ratio_max": math.inf, "train/ratio_min": -math.inf})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["train/loss"] == "nan"
    (line,) = read_metrics(tmp_path)
    assert math.isnan(line["train/loss"])
    assert (line["train/ratio_max"], line["train/ratio_min"]) == (math.inf, -math.inf)


def test_a_step_is_logged_once_and_in_order(tmp_path: Path) -> None:
    with MetricLogger(tmp_path) as metrics:
        metrics.log(0, {})
        metrics.log(2, {})
        for step in (2, 1):
            with pytest.raises(ValueError, match="after those of step 2"):
                metrics.log(step, {})


def test_a_refused_step_leaves_no_line(tmp_path: Path) -> None:
    with MetricLogger(tmp_path) as metrics, pytest.raises(UnknownIdError):
        metrics.log(1, {"train/loss": 1.0, "train/lose": 1.0})
    assert read_metrics(tmp_path) == []


def test_resume_drops_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    logged(tmp_path / "whole", range(1, 8))
    logged(tmp_path / "killed", range(1, 6))
    logged(tmp_path / "killed", range(4, 8), resume_step=3)
    assert (tmp_path / "killed/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_run_from_the_beginning_starts_an_empty_log(tmp_path: Path) -> None:
    logged(tmp_path, range(0, 4))
    logged(tmp_path, range(0, 2))
    assert series(read_metrics(tmp_path), "train/loss")[0] == [0, 1]


def test_the_half_line_of_a_kill_is_ignored_and_removed_on_resume(tmp_path: Path) -> None:
    logged(tmp_path, range(1, 4))
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for cut in (1, 5, len(whole.splitlines()[-1])):  # the last cut takes all of the last line but its newline
        path.write_bytes(whole[: whole.rstrip().rfind(b"\n") + 1 + cut])
        assert series(read_metrics(tmp_path), "train/loss")[0] == [1, 2]
    logged(tmp_path, range(3, 4), resume_step=2)
    assert path.read_bytes() == whole


def test_damage_elsewhere_names_file_and_line(tmp_path: Path) -> None:
    logged(tmp_path, range(1, 4))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-4], lines[2], ""]))
    with pytest.raises(RecordError, match=r"metrics\.jsonl:2: not a line of metrics"):
        read_metrics(path)
    path.write_text('{"train/loss":1}\n')
    with pytest.raises(RecordError, match="needs an integer 'step'"):
        read_metrics(path)


_KILLED = """
import os, signal, sys
from srpo_train.metrics import MetricLogger
metrics = MetricLogger(sys.argv[1])
for step in range(1, 4):
    metrics.log(step, {"train/loss": step / 3})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_logged_step_survives_sigkill(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -9
    assert series(read_metrics(tmp_path), "train/loss") == ([1, 2, 3], [1 / 3, 2 / 3, 1.0])


def test_series_and_names_skip_steps_without_the_metric() -> None:
    lines = [{"step": 0, "eval/accuracy": 0.2}, {"step": 1, "train/loss": 1.0}, {"step": 2, "eval/accuracy": 0.5}]
    assert series(lines, "eval/accuracy") == ([0, 2], [0.2, 0.5])
    assert names_below(lines, "eval/") == ["eval/accuracy"]
