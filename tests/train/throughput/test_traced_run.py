"""Runs that are traced: what every step reports, and the files of the steps that are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_world import run_ranks
from typer.testing import CliRunner

from srpo_train.cli import app
from srpo_train.config import LogConfig, load_recipe
from srpo_train.distributed.ranks import Ranks
from srpo_train.loop import train
from srpo_train.metrics import read_metrics
from srpo_train.throughput.recorder import RECORDER
from srpo_train.throughput.trace import find_trace, read_trace, time_use
from srpo_train.throughput.tracing import StepTracer

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    "env.kwargs.size=6",
    "eval.every=2",
    "eval.num_tasks=2",
    "eval.samples_per_task=1",
    "eval.at_start=false",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=3",
    "train.checkpoint_every=2",
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)


def run(folder, *overrides):
    return train(load_recipe(RECIPE, [f"output_dir={folder}", *SMALL, *overrides]))


@pytest.fixture(scope="module", params=["rounds", "asynchronous"])
def traced(tmp_path_factory, request):
    return run(tmp_path_factory.mktemp("run"), "log.trace_steps=[2]", f"rollout.mode={request.param}")


def test_the_trace_of_a_step_shows_all_it_does(traced):
    assert [path.name for path in (traced / "trace").iterdir()] == ["step-000002.json"]
    uses = {(use.track, use.name): use for use in time_use(read_trace(find_trace(traced)))}
    expected = {
        ("trainer", name)
        for name in ("step 2", "collect", "score", "backward", "backward pass", "optimizer", "evaluate", "checkpoint")
    }
    assert expected | {("engine team", "generate"), ("environment", "move")} <= uses.keys()
    parts = [uses["trainer", name].total_s for name in ("collect", "score", "backward", "evaluate", "checkpoint")]
    assert 0.5 * uses["trainer", "step 2"].total_s < sum(parts) <= uses["trainer", "step 2"].total_s


def test_every_step_reports_its_throughput(traced):
    first, second, third = read_metrics(traced)
    for line in (first, second, third):
        assert 0 < line["perf/mfu/update"] <= line["perf/hfu/update"] < 1
        assert 0 < line["perf/mfu/generate"] < 1
        assert line["perf/padding_share/update"] == 0  # packed
        parts = ("generate", "env", "score", "backward", "optimizer", "publish", "other")
        assert sum(line[f"time/{name}_s"] for name in parts) == pytest.approx(line["time/step_s"], rel=1e-6)
    assert second["time/checkpoint_s"] == 0 < third["time/checkpoint_s"]  # the save after step 2


def test_a_trace_is_told_at_the_terminal_and_drawn(traced, tmp_path):
    picture = tmp_path / "step.png"
    told = CliRunner().invoke(app, ["trace", str(traced), "--out", str(picture)], env={"COLUMNS": "120"})
    assert told.exit_code == 0, told.output
    assert "backward pass" in told.output
    assert "100.0%" in told.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    missing = CliRunner().invoke(app, ["trace", str(traced), "--step", "1"])
    assert missing.exit_code == 1
    assert "not traced" in missing.stderr


def test_padded_rows_are_told_as_padding_and_change_nothing_else(tmp_path):
    padded = run(tmp_path / "padded", "optim.packing=false", "train.num_steps=1")
    packed = run(tmp_path / "packed", "optim.packing=true", "train.num_steps=1")
    (before,), (after,) = read_metrics(padded), read_metrics(packed)
    assert before["perf/padding_share/update"] > 0 == after["perf/padding_share/update"]
    assert after["train/loss"] == pytest.approx(before["train/loss"], abs=1e-6)
    assert after["train/grad_norm"] == pytest.approx(before["train/grad_norm"], rel=1e-4)


def record_step(ranks, folder):
    tracer = StepTracer(Path(folder), LogConfig(trace_every=2), ranks)
    for step in (1, 2):
        with tracer.step(step), RECORDER.phase("score", rows=ranks.rank):
            pass
    return RECORDER.is_tracing


def test_the_main_rank_writes_the_spans_of_all(tmp_path):
    assert run_ranks(2, tmp_path / "ranks", record_step, str(tmp_path)) == [False, False]
    assert [path.name for path in (tmp_path / "trace").iterdir()] == ["step-000002.json"]
    spans = [event for event in read_trace(find_trace(tmp_path))["traceEvents"] if event["ph"] == "X"]
    assert {(span["pid"], span["name"]) for span in spans} == {(0, "step 2"), (0, "score"), (1, "step 2"), (1, "score")}
    assert {span["args"]["rows"] for span in spans if span["name"] == "score"} == {0, 1}


def test_torchs_profiler_leaves_every_operation(tmp_path):
    tracer = StepTracer(tmp_path, LogConfig(profile_steps=(1,)), Ranks())
    with tracer.step(1):
        torch.ones(4, 4) @ torch.ones(4, 4)
    text = (tmp_path / "trace" / "profile-000001-rank0.json").read_text()
    assert "aten::mm" in text
