"""`srpo_train.checkpoint`: whole or not at all, killed at every instant of a save."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from srpo_envs.errors import CheckpointError
from srpo_train.checkpoint import Checkpoint, CheckpointStore


def weights(content: str) -> Any:
    def write(directory: Path) -> None:
        (directory / "policies/team").mkdir(parents=True)
        (directory / "policies/team/model.bin").write_text(content)

    return write


def saved(directory: Path, *steps: int, keep_last: int = 2) -> CheckpointStore:
    store = CheckpointStore(directory, keep_last)
    for step in steps:
        store.save(step, weights(f"weights {step}"), {"step": step})
    return store


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_state_and_weights_come_back(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.arange(3.0))
    optimizer = torch.optim.AdamW([parameter], lr=0.5)
    parameter.sum().backward()
    optimizer.step()
    state = {
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "order": [3, 1, 2],
        "numpy": {"state": 2**100, "name": "PCG64"},
    }
    CheckpointStore(tmp_path).save(10, weights("w"), state)
    store = CheckpointStore(tmp_path)
    newest = store.latest()
    assert newest == Checkpoint(10, tmp_path / "step-000010")
    assert (newest.path / "policies/team/model.bin").read_text() == "w"
    loaded = store.load_state(newest)
    assert torch.equal(loaded["rng"], state["rng"])
    assert (loaded["order"], loaded["numpy"]) == (state["order"], state["numpy"])
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_nothing_saved_is_none_and_makes_no_directory(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none").latest() is None
    assert not (tmp_path / "none").exists()


def test_the_newest_are_kept_in_order_of_steps(tmp_path: Path) -> None:
    saved(tmp_path, 5, 900_000, 1_000_000, keep_last=2)  # as texts, 1000000 would sort before 900000
    assert names(tmp_path) == ["step-1000000", "step-900000"]
    assert saved(tmp_path).latest() == Checkpoint(1_000_000, tmp_path / "step-1000000")


def test_keep_last_has_to_keep_something(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(tmp_path, keep_last=0)


def test_a_failing_writer_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    store = saved(tmp_path, 1)

    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.save(2, fail, {})
    assert store.latest() == Checkpoint(1, tmp_path / "step-000001")
    assert store.save(2, weights("again"), {}).step == 2


def test_opening_removes_leftovers_unless_it_only_reads(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for leftover in ("step-000002.partial", "step-000000.trash"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "manifest.json").write_text("{}")
    reader = CheckpointStore(tmp_path, is_read_only=True)
    assert reader.latest() == Checkpoint(1, tmp_path / "step-000001")
    assert len(names(tmp_path)) == 3
    with pytest.raises(CheckpointError, match="for reading only"):
        reader.save(3, weights("w"), {})
    CheckpointStore(tmp_path)
    assert names(tmp_path) == ["step-000001"]


def damage_by_cutting(path: Path) -> None:
    file = path / "policies/team/model.bin"
    file.write_bytes(file.read_bytes()[:-1])


def damage_by_flipping(path: Path) -> None:
    file = path / "policies/team/model.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"?")


def damage_by_removing(path: Path) -> None:
    (path / "state.pt").unlink()


def damage_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"files": ')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_by_cutting, "model.bin has 8 bytes instead of 9"),  # len("weights 2") = 9
        (damage_by_flipping, "model.bin has other contents than were saved"),
        (damage_by_removing, "state.pt is missing"),
        (damage_manifest, "its manifest cannot be read"),
    ],
)
def test_a_damaged_newest_is_reported_and_the_one_before_is_used(
    tmp_path: Path, damage: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = saved(tmp_path, 1, 2)
    damage(tmp_path / "step-000002")
    with caplog.at_level(logging.WARNING):
        assert store.latest() == Checkpoint(1, tmp_path / "step-000001")
    assert reason in caplog.text
    store.save(2, weights("again"), {"step": 2})  # the run goes on from 1 and comes by 2 again
    assert store.latest() == Checkpoint(2, tmp_path / "step-000002")


def test_when_every_checkpoint_is_damaged_nothing_starts_over_silently(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 2)
    for step in (1, 2):
        damage_manifest(tmp_path / f"step-00000{step}")
    with pytest.raises(CheckpointError, match="none of 2 checkpoints is complete"):
        store.latest()


def test_a_checkpoint_is_found_by_its_step(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 2)
    assert store.at(1) == Checkpoint(1, tmp_path / "step-000001")
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3; kept: \[1, 2\]"):
        store.at(3)
    damage_by_flipping(tmp_path / "step-000001")
    with pytest.raises(CheckpointError, match=r"damaged .*other contents"):
        store.at(1)


def test_pruning_never_counts_a_damaged_checkpoint_as_kept(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 2, keep_last=2)
    damage_by_cutting(tmp_path / "step-000002")
    store.save(3, weights("weights 3"), {})
    assert names(tmp_path) == ["step-000001", "step-000003"]


def test_a_complete_step_is_not_overwritten(tmp_path: Path) -> None:
    store = saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="already saved"):
        store.save(1, weights("other"), {})
    assert (tmp_path / "step-000001/policies/team/model.bin").read_text() == "weights 1"


def test_a_state_that_would_run_code_when_loaded_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="something other than tensors"):
        CheckpointStore(tmp_path).save(1, weights("w"), {"path": Path("x")})
    assert CheckpointStore(tmp_path).latest() is None


def test_an_unreadable_state_names_its_file(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 1).latest()
    assert checkpoint is not None
    (checkpoint.path / "state.pt").write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match=r"state\.pt: cannot be read"):
        CheckpointStore(tmp_path).load_state(checkpoint)


# --- SIGKILL ------------------------------------------------------------------------------------------------------

# A parent process forks one child per instant. The child saves step 3 over steps 1 and 2 and kills itself just before
# its n-th operation on the file system, counted over opening, writing, syncing, renaming, making and removing.
_KILLED_AT_EVERY_INSTANT = """
import json, os, shutil, signal, sys
from pathlib import Path
import torch
from srpo_train.checkpoint import CheckpointStore

base = Path(sys.argv[1])
REMOVALS = {"os.remove", "os.rmdir"}  # a tree is removed by names relative to a handle
AUDITED = {"open", "os.mkdir", "os.rename"} | REMOVALS

def write(directory):
    (directory / "a.bin").write_bytes(b"a" * 100)
    (directory / "sub").mkdir()
    (directory / "sub/b.bin").write_bytes(b"b" * 100)

def state(step):
    return {"step": step, "weight": torch.full((4,), float(step))}

def child(directory, instant):
    count = 0
    def step():
        nonlocal count
        count += 1
        if count == instant:
            os.kill(os.getpid(), signal.SIGKILL)
    def hook(event, arguments):
        if event in AUDITED and (event in REMOVALS or str(directory) in str(arguments[0])):
            step()
    fsync = os.fsync
    def counted_fsync(handle):
        step()
        fsync(handle)
    sys.addaudithook(hook)
    os.fsync = counted_fsync
    store = CheckpointStore(directory, keep_last=2)
    store.save(3, write, state(3))

store = CheckpointStore(base / "start", keep_last=2)
for step in (1, 2):
    store.save(step, write, state(step))
outcomes = []
for instant in range(1, 200):
    directory = base / f"killed-{instant}"
    shutil.copytree(base / "start", directory)
    pid = os.fork()
    if pid == 0:
        child(directory, instant)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    outcomes.append(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status))
    if outcomes[-1] != signal.SIGKILL:
        break
print(json.dumps(outcomes))
"""


def is_whole(path: Path) -> bool:
    return names(path) == ["a.bin", "manifest.json", "state.pt", "sub"] and names(path / "sub") == ["b.bin"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_a_save_killed_at_any_instant_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_AT_EVERY_INSTANT, str(tmp_path)], check=True, capture_output=True, text=True
    )
    outcomes = json.loads(done.stdout)
    assert outcomes[-1] == 0, "the last child ran through"
    assert set(outcomes[:-1]) == {9}
    steps = []
    for instant in range(1, len(outcomes) + 1):
        directory = tmp_path / f"killed-{instant}"
        watcher = CheckpointStore(directory, is_read_only=True)
        newest = watcher.latest()
        assert newest is not None
        state = watcher.load_state(newest)
        assert state["step"] == newest.step
        assert torch.equal(state["weight"], torch.full((4,), float(newest.step)))
        assert (newest.path / "sub/b.bin").read_bytes() == b"b" * 100
        steps.append(newest.step)
        CheckpointStore(directory)  # the resuming run cleans up
        assert newest.path.name in names(directory)
        assert all(is_whole(directory / name) for name in names(directory)), "nothing half-made or half-removed stays"
    assert steps == sorted(steps), "once the new checkpoint exists it stays"
    assert len(steps) > 20
    assert 2 <= steps.count(3) < len(steps) - 10, "instants before and after the rename were both met"
