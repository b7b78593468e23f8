"""`srpo_train.metrics`, `monitor` and `sinks`: stable names, a log that survives a kill, readable views."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from srpo_envs.errors import MissingExtraError, RecordError, UnknownIdError
from srpo_train.config import parse_recipe
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
from srpo_train.monitor import Monitor
from srpo_train.sinks import COLUMNS, TerminalSink, open_metrics

RECIPE = parse_recipe({"name": "x", "env": {"id": "e"}, "policies": {"p": {"model": "m"}}})


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


def test_terminal_columns_show_known_metrics() -> None:
    for column in COLUMNS:
        check_name(column.name + "any" if column.name.endswith("/") else column.name)


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


# --- monitor ------------------------------------------------------------------------------------------------------

HEALTHY = {
    "rollout/reward_mean": 0.5,
    "rollout/reward_std": 0.5,
    "rollout/valid_rate/solver": 0.9,
    "train/engine_gap": 1e-5,
    "train/num_nonfinite_steps": 0,
    "train/first_clip_fraction": 0.0,
}


def test_a_healthy_step_gives_no_warning() -> None:
    assert Monitor().check(HEALTHY) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rollout/reward_std": 0.0, "rollout/reward_mean": 0.0}, "every episode of the step has reward 0"),
        ({"rollout/valid_rate/solver": 0.0}, "no response of role 'solver' could be parsed"),
        ({"train/engine_gap": 0.2}, "disagree by 0.2 nats a token"),
        ({"train/engine_gap": math.nan}, "disagree by nan nats a token"),
        ({"train/num_nonfinite_steps": 1}, "not finite"),
        ({"train/first_clip_fraction": 0.01}, "clipped at the first update"),
    ],
)
def test_a_quiet_failure_is_said_once_while_it_lasts(changed: dict[str, float], said: str) -> None:
    monitor = Monitor()
    (warning,) = monitor.check(HEALTHY | changed)
    assert said in warning
    assert monitor.check(HEALTHY | changed) == []
    assert monitor.check(HEALTHY) == []
    assert len(monitor.check(HEALTHY | changed)) == 1


# --- views --------------------------------------------------------------------------------------------------------

STEP = {"eval/accuracy": 0.25, "rollout/valid_rate/solver": 1.0, "rollout/valid_rate/verifier": 0.5}


def shown(*, is_terminal: bool, width: int = 120) -> str:
    file = io.StringIO()
    sink = TerminalSink(4, console=Console(file=file, force_terminal=is_terminal, width=width))
    sink.write(1, STEP)
    sink.warn("look here")
    sink.write(2, {"eval/accuracy": 0.5})
    sink.close()
    return file.getvalue()


def test_without_a_terminal_there_are_plain_aligned_lines() -> None:
    header, first, warning, second = shown(is_terminal=False).splitlines()
    assert header.split()[:3] == ["step", "held-out", "right"]
    assert first.split() == ["1", "0.250", "75.0%"]  # valid: the mean of 1.0 and 0.5
    assert first.index("75.0%") + 5 == header.index("valid") + 5
    assert warning == "warning: look here"
    assert second.split() == ["2", "0.500"]


def test_on_a_terminal_a_bar_follows_the_rows() -> None:
    text = shown(is_terminal=True)
    assert "2/4" in text
    assert "held-out" in text


def test_a_narrow_terminal_loses_the_last_columns_instead_of_wrapping() -> None:
    assert "s/step" in shown(is_terminal=True, width=120)
    narrow = shown(is_terminal=True, width=50)
    assert "valid" in narrow
    assert "s/step" not in narrow


def test_tensorboard_points_after_the_checkpoint_are_purged_on_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def run(steps: range, resume_step: int | None) -> None:
        with open_metrics(RECIPE, tmp_path, resume_step, Console(file=io.StringIO())) as metrics:
            for step in steps:
                metrics.log(step, {"train/loss": float(step + 10 * (resume_step or 0))})

    run(range(1, 6), None)
    run(range(3, 5), 2)
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    points = {point.step: point.value for point in accumulator.Scalars("train/loss")}
    assert points == {1: 1.0, 2: 2.0, 3: 23.0, 4: 24.0}


def test_wandb_that_is_not_installed_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    recipe = RECIPE.model_copy(update={"log": RECIPE.log.model_copy(update={"wandb": True, "tensorboard": False})})
    with pytest.raises(MissingExtraError, match=r"pip install 'srpo\[wandb\]'"):
        open_metrics(recipe, tmp_path, None, Console(file=io.StringIO()))
