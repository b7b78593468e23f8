"""A run whose disk is full ends with one clear line, and goes on to the same numbers once there is room."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

from run_accounts import accounts_of, stored

import srpo_train.loop
from srpo_envs.errors import StorageFullError
from srpo_train.checkpoint import CheckpointStore
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import MetricLogger, read_metrics, without_timing

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"
NAME = "tiny-arithmetic"
SMALL = (
    "eval.every=0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=3",
    "train.checkpoint_every=1",
    "log.save_events=all",
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)


def recipe(folder):
    return load_recipe(RECIPE, [f"output_dir={folder}", *SMALL])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return train(recipe(tmp_path_factory.mktemp("whole")))


class Disk:
    """A small file system of its own."""

    def __init__(self, path):
        self.path = path
        self._ballast = path / "ballast"

    def fill(self):
        """Leave no room, not even for what fits into blocks already begun."""
        with self._ballast.open("wb", buffering=0) as file:
            piece = 1 << 20
            while piece:
                try:
                    file.write(b"0" * piece)
                except OSError:
                    piece //= 2

    def free(self):
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", uuid.uuid4().hex, path], capture_output=True)
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.decode().strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", path], check=True)


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
        (srpo_train.loop, "write_episodes", "events/step-000002.jsonl"),
        (MetricLogger, "log", "metrics.jsonl"),
        (CheckpointStore, "save", "checkpoints/step-000002"),
        (srpo_train.loop, "write_report", "curves.png"),
    ],
)
def test_a_full_disk_ends_the_run_by_name_and_freed_it_arrives_at_the_same_numbers(
    monkeypatch, disk, whole_run, place, name, file
):
    run_dir = disk.path / NAME
    with monkeypatch.context() as patch:
        full_at(patch, disk, place, name, nth=1 if name == "write_report" else 2)
        with pytest.raises(StorageFullError) as error:
            train(recipe(disk.path))
    assert f"{run_dir / file}" in str(error.value)
    assert "No space left on device; free space there, then go on with --resume" in str(error.value)
    assert not list(run_dir.rglob("*.partial"))
    assert (run_dir / "metrics.jsonl").read_bytes().endswith(b"}\n")
    with pytest.raises(StorageFullError, match=r"recipe.toml could not be written: No space left"):
        train(recipe(disk.path), resume=True)
    disk.free()
    train(recipe(disk.path), resume=True)
    assert [without_timing(line) for line in read_metrics(run_dir)] == [
        without_timing(line) for line in read_metrics(whole_run)
    ]
    weights = Path("checkpoints", "step-000003", "team", "model.safetensors")
    assert (run_dir / weights).read_bytes() == (whole_run / weights).read_bytes()
    for step in (1, 2, 3):
        assert [episode.events[-1].state_id for episode in stored(run_dir, step)] == [
            episode.events[-1].state_id for episode in stored(whole_run, step)
        ]
    assert accounts_of(run_dir, per_step=8, num_steps=3).trained == 24


_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from srpo_train.cli import main
sys.argv[0] = "srpo"
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
def test_a_limit_on_files_is_told_as_one_line_by_the_command(tmp_path):
    overrides = (f"output_dir={tmp_path}", *SMALL, "rollout.group_size=8", "train.num_steps=1")
    command = [sys.executable, "-c", _LIMITED, "train", str(RECIPE)]
    done = subprocess.run(
        [*command, *(word for key in overrides for word in ("--set", key))],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert str(tmp_path / NAME / "events" / "step-000001.jsonl") in line
    assert "File too large; free space there, then go on with --resume" in line
    assert "Traceback" not in done.stderr
