"""Checkpoints that are written while training goes on: what they hold, when they are there, and what goes wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from rank_world import run_ranks

from srpo_envs.errors import StorageFullError
from srpo_train import checkpoint
from srpo_train.checkpoint import CheckpointStore
from srpo_train.config import load_recipe
from srpo_train.loop import Trainer, train
from srpo_train.metrics import read_metrics, without_timing

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    "env.kwargs.size=6",
    "eval.every=0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=4",
    "train.checkpoint_every=2",
    "train.keep_last=2",
    "log.save_events=none",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)
BACKGROUND = "train.async_checkpoints=true"
SHARDED = "distributed.sharding=fsdp"


def recipe(folder, *overrides):
    return load_recipe(RECIPE, [f"output_dir={folder}", *SMALL, *overrides])


def contents(run_dir):
    """Every number of every checkpoint; torch's own files hold dates."""
    found = {}
    for path in sorted((run_dir / "checkpoints").glob("step-*")):
        for file in sorted(path.rglob("*.safetensors")):
            found[f"{path.name}/{file.relative_to(path)}"] = file.read_bytes()
        state = CheckpointStore(path.parent, is_read_only=True).load_state(
            checkpoint.Checkpoint(int(path.name[5:]), path)
        )
        found[path.name] = plain(state)
    return found


def plain(value):
    """Tensors as bytes, which compare."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


def numbers(run_dir):
    return [without_timing(line) for line in read_metrics(run_dir)]


class Gate:
    """Holds up whoever makes a checkpoint complete until it is opened."""

    def __init__(self, monkeypatch, error=None):
        self.is_open = threading.Event()
        self.num_met = 0
        write = checkpoint._write_manifest

        def wait_and_write(directory, step):
            self.num_met += 1
            if error and self.num_met == 2:
                raise error
            assert self.is_open.wait(60.0)
            write(directory, step)

        monkeypatch.setattr(checkpoint, "_write_manifest", wait_and_write)


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits(tmp_path, monkeypatch):
    gate, begun = Gate(monkeypatch), []
    step = Trainer._train_step

    def watched(trainer):
        folder = tmp_path / "tiny-arithmetic" / "checkpoints"
        begun.append((trainer._step, sorted(path.name for path in folder.glob("step-*"))))
        if trainer._step == 3:
            gate.is_open.set()
        return step(trainer)

    monkeypatch.setattr(Trainer, "_train_step", watched)
    run_dir = train(recipe(tmp_path, BACKGROUND))
    # Step 3 and 4 were trained while the checkpoint of step 2 was being written.
    assert begun == [(0, []), (1, []), (2, ["step-000002.partial"]), (3, ["step-000002.partial"])]
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["step-000002", "step-000004"]


def test_a_checkpoint_holds_what_was_so_when_it_was_begun(tmp_path, monkeypatch):
    expected = train(recipe(tmp_path / "at once"))
    gate = Gate(monkeypatch)
    step = Trainer._train_step

    def late(trainer):
        metrics = step(trainer)
        if trainer._step == 4:  # the weights and moments of step 2 are gone
            gate.is_open.set()
        return metrics

    monkeypatch.setattr(Trainer, "_train_step", late)
    write = checkpoint._save_state
    monkeypatch.setattr(checkpoint, "_save_state", lambda *given: (gate.is_open.wait(60.0), write(*given)))
    found = train(recipe(tmp_path / "later", BACKGROUND))
    assert contents(found).keys() == contents(expected).keys()
    assert contents(found) == contents(expected)
    assert numbers(found) == numbers(expected)


def test_what_fails_in_the_background_is_told_at_the_next_checkpoint_and_the_one_before_stays(tmp_path, monkeypatch):
    gate = Gate(monkeypatch, error=OSError(28, "No space left on device"))
    gate.is_open.set()
    with pytest.raises(StorageFullError, match=r"step-000002 could not be written.*--resume"):
        train(recipe(tmp_path, BACKGROUND, "train.checkpoint_every=1"))
    folder = tmp_path / "tiny-arithmetic" / "checkpoints"
    assert [path.name for path in folder.iterdir()] == ["step-000001"]
    assert [line["step"] for line in numbers(folder.parent)] == [1, 2, 3]
    monkeypatch.undo()
    expected = train(recipe(tmp_path / "whole", "train.checkpoint_every=1"))
    assert numbers(train(recipe(tmp_path), resume=True)) == numbers(expected)


def train_sharded(ranks, folder):
    train(recipe(folder / "at once", SHARDED))
    train(recipe(folder / "later", SHARDED, BACKGROUND, "train.num_steps=2"))
    train(recipe(folder / "later", SHARDED, BACKGROUND), resume=True)


def test_spread_policies_are_written_in_the_background_by_all_ranks(tmp_path):
    run_ranks(2, tmp_path / "ranks", train_sharded, tmp_path)
    expected, found = (tmp_path / name / "tiny-arithmetic" for name in ("at once", "later"))
    assert contents(found) == contents(expected)
    assert numbers(found) == numbers(expected)
    parts = "checkpoints/step-000002/_shards/team"
    assert {path.name for path in (found / parts).iterdir()} == {path.name for path in (expected / parts).iterdir()}
