"""A run whose disk is full ends with one clear line, and goes on to the same numbers once there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from run_accounts import accounts_of, assert_same_run
from typer.testing import CliRunner

import srpo_train.event_log
import srpo_train.loop
from srpo_envs.errors import StorageFullError
from srpo_train.checkpoint import CheckpointStore
from srpo_train.cli import app
from srpo_train.loop import train
from srpo_train.metrics import MetricLogger

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"
NAME = "tiny-arithmetic"


def full_at(monkeypatch, disk, place, name, nth):
    """Fill the disk just before the n-th call of a function that writes."""
    write, calls = getattr(place, name), []

    def filled(*args, **kwargs):
        calls.append(name)
        if len(calls) == nth:
            disk.fill()
        return write(*args, **kwargs)

    monkeypatch.setattr(place, name, filled)


@pytest.mark.parametrize(
    ("place", "name", "file"),
    [
        (srpo_train.event_log, "write_episodes", "events/step-000002.jsonl"),
        (MetricLogger, "log", "metrics.jsonl"),
        (CheckpointStore, "begin", "checkpoints/step-000002"),
        (CheckpointStore, "complete", "checkpoints/step-000002"),
        (srpo_train.loop, "write_report", "curves.png"),
    ],
)
def test_a_full_disk_ends_the_run_by_name_and_freed_it_arrives_at_the_same_numbers(
    monkeypatch, disk, small_recipe, whole_run, place, name, file
):
    run_dir = disk.path / NAME
    with monkeypatch.context() as patch:
        full_at(patch, disk, place, name, nth=1 if name == "write_report" else 2)
        with pytest.raises(StorageFullError) as error:
            train(small_recipe(disk.path))
    assert f"{run_dir / file}" in str(error.value)
    assert "No space left on device; free space there, then go on with --resume" in str(error.value)
    assert not list(run_dir.rglob("*.partial"))
    assert (run_dir / "metrics.jsonl").read_bytes().endswith(b"}\n")
    with pytest.raises(StorageFullError, match="could not be written: No space left"):  # what it took up is free again
        train(small_recipe(disk.path), resume=True)
    disk.free()
    train(small_recipe(disk.path), resume=True)
    assert_same_run(run_dir, whole_run)
    assert accounts_of(run_dir, per_step=8, num_steps=3).trained == 24


@pytest.fixture
def small_files():
    """No file of this process may grow beyond 30,000 bytes, as under a quota; needs no rights."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_limit_on_files_is_told_as_one_line_by_the_command(tmp_path, small_files):
    keys = (f"output_dir={tmp_path}", "eval.every=0", "rollout.prompts_per_step=4", "train.num_steps=1")
    keys += ("log.tensorboard=false", "log.save_events=all")
    done = CliRunner().invoke(app, ["train", str(RECIPE), *(word for key in keys for word in ("--set", key))])
    assert done.exit_code == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert str(tmp_path / NAME / "events" / "step-000001.jsonl") in line
    assert "File too large; free space there, then go on with --resume" in line


def test_a_disk_that_is_full_when_a_checkpoint_is_finished_in_the_background_ends_the_run_too(
    monkeypatch, disk, small_recipe, whole_run
):
    """Whether the checkpoint says so first or the next step, which goes on meanwhile and finds no room either."""
    recipe = small_recipe(disk.path, "train.async_checkpoints=true")
    with monkeypatch.context() as patch:
        full_at(patch, disk, CheckpointStore, "complete", nth=2)
        with pytest.raises(StorageFullError, match="free space there, then go on with --resume"):
            train(recipe)
    assert not list(recipe.run_dir.rglob("*.partial"))
    disk.free()
    train(recipe, resume=True)
    assert_same_run(recipe.run_dir, whole_run)
    assert accounts_of(recipe.run_dir, per_step=8, num_steps=3).trained == 24
