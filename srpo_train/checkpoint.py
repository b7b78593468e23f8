"""Checkpoints that are there whole or not at all, whenever the process dies.

A save writes into ``step-000010.partial``, puts a manifest of sizes and digests there last, forces everything to disk,
and renames the directory to ``step-000010``: that rename is the moment the checkpoint exists. Older ones are pruned
after it, each by a rename out of the way before anything in it is deleted. So at any instant the newest complete
checkpoint is either the one before or the new one::

    store = CheckpointStore(run_dir / "checkpoints", keep_last=2)
    store.save(10, write_weights, {"step": 10, "optimizer": optimizer.state_dict(), "rng": rng_state})
    newest = store.latest()                  # Checkpoint(step=10, path=...)
    state = store.load_state(newest)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.errors import CheckpointError
from srpo_envs.storing import storing

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
"""Lists every file of a checkpoint with its size and digest; written last."""

STATE_FILE = "state.pt"
"""What `CheckpointStore.save` was given as state."""

_FORMAT = 1
_COMPLETE = re.compile(r"step-(\d{6,})\Z")
_PARTIAL = ".partial"
_TRASH = ".trash"


@dataclass(frozen=True, order=True, slots=True)
class Checkpoint:
    """One complete checkpoint.

    Example:
        ``Checkpoint(step=10, path=Path("runs/x/checkpoints/step-000010"))``
    """

    step: int
    """Training steps taken."""
    path: Path
    """Its directory, with what the writer put there."""


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: Where they lie; made when it is written to for the first time.
        keep_last: Newest complete checkpoints that are kept.
        is_read_only: Leave everything as it is, as an evaluation beside a training run must; otherwise what a killed
            run left behind is removed now.

    Raises:
        ValueError: `keep_last` is below 1.
    """

    def __init__(self, directory: str | Path, keep_last: int = 2, *, is_read_only: bool = False) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last: expected at least 1, got {keep_last}")
        self.directory = Path(directory)
        self._keep_last = keep_last
        self._is_read_only = is_read_only
        if not is_read_only:
            self._remove_leftovers()

    def save(
        self, step: int, writer: Callable[[Path], None], state: Mapping[str, Any], *, best: int | None = None
    ) -> Checkpoint:
        """Add a checkpoint and prune the oldest beyond `keep_last`: `begin` and `complete` at once.

        Args:
            step: Training steps taken, at least 0.
            writer: Writes weights and whatever else into the directory it is given.
            state: Tensors, numbers, texts, lists and dicts of them: optimizer, random states, data position.
            best: A step that was good; the newest checkpoint at or before it is kept as well.

        Raises:
            CheckpointError: the step is already there, or the state holds something that could not be loaded safely.
            StorageFullError: there is no room for it; nothing of it stays, and the checkpoints before it do.
        """
        self.begin(step, writer)
        return self.complete(step, _nothing, state, best=best)

    def begin(self, step: int, writer: Callable[[Path], None]) -> None:
        """Write a first part of a checkpoint, which does not exist before `complete`; one at a time.

        Args:
            step: Training steps taken, at least 0.
            writer: Writes into the directory it is given.

        Raises:
            CheckpointError: the step is already there.
            StorageFullError: there is no room for it; nothing of it stays.
        """
        if self._is_read_only:
            raise CheckpointError(f"{self.directory}: this store was opened for reading only")
        target, partial = self._places(step)
        if target.exists() and _damage(target) is None:
            raise CheckpointError(f"{target}: this step is already saved; resume from it or use another run name")
        shutil.rmtree(partial, ignore_errors=True)
        with storing(target), _removed_on_failure(partial):
            partial.mkdir(parents=True)
            writer(partial)

    def complete(
        self, step: int, writer: Callable[[Path], None], state: Mapping[str, Any], *, best: int | None = None
    ) -> Checkpoint:
        """Write the rest of a checkpoint that was begun, make it one, and prune; on any thread.

        For arguments and errors see `save`.
        """
        target, partial = self._places(step)
        with storing(target), _removed_on_failure(partial):
            writer(partial)
            _save_state(partial / STATE_FILE, state)
            _write_manifest(partial, step)
        if target.exists():  # a damaged one, which nothing can use
            self._discard(target)
        partial.rename(target)
        _sync_directory(self.directory)
        self._prune(None if best is None else self.not_after(best))
        return Checkpoint(step, target)

    def _places(self, step: int) -> tuple[Path, Path]:
        """Where the checkpoint of a step is, and where it is while it is being written."""
        target = self.directory / f"step-{step:06d}"
        return target, target.with_name(target.name + _PARTIAL)

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, verified against its manifest; None when nothing was ever saved.

        A damaged one is reported and the one before it is used.

        Raises:
            CheckpointError: there are checkpoints and every one is damaged.
        """
        found = sorted(self._found(), reverse=True)
        for checkpoint in found:
            damage = _damage(checkpoint.path)
            if damage is None:
                return checkpoint
            logger.warning("checkpoint %s is damaged (%s); using the one before it", checkpoint.path, damage)
        if found:
            raise CheckpointError(
                f"{self.directory}: none of {len(found)} checkpoints is complete; "
                f"remove the directory to start from the beginning"
            )
        return None

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of one step, verified.

        Raises:
            CheckpointError: it is not there, with the steps that are, or it is damaged.
        """
        found = {checkpoint.step: checkpoint for checkpoint in self._found()}
        if step not in found:
            raise CheckpointError(f"{self.directory}: no checkpoint of step {step}; kept: {sorted(found) or 'none'}")
        if damage := _damage(found[step].path):
            raise CheckpointError(f"{found[step].path}: damaged ({damage})")
        return found[step]

    def not_after(self, step: int) -> Checkpoint | None:
        """Return the newest complete checkpoint at or before a step; None when there is none."""
        for checkpoint in sorted(self._found(), reverse=True):
            if checkpoint.step <= step and _damage(checkpoint.path) is None:
                return checkpoint
        return None

    def load_state(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the state a checkpoint was saved with, tensors on the CPU.

        Raises:
            CheckpointError: the state cannot be read.
        """
        import torch

        path = checkpoint.path / STATE_FILE
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # unpickling fails in many ways, all of which mean the same here
            raise CheckpointError(f"{path}: cannot be read ({error})") from error
        return state

    def _found(self) -> list[Checkpoint]:
        if not self.directory.is_dir():
            return []
        entries = [(_COMPLETE.match(path.name), path) for path in self.directory.iterdir() if path.is_dir()]
        return [Checkpoint(int(match[1]), path) for match, path in entries if match]

    def _prune(self, good: Checkpoint | None) -> None:
        """Remove all but the newest and the good one; damaged ones do not count as kept, and go."""
        kept = 0
        for checkpoint in sorted(self._found(), reverse=True):
            if kept < self._keep_last and _damage(checkpoint.path, read_contents=False) is None:
                kept += 1
            elif checkpoint != good:
                self._discard(checkpoint.path)

    def _discard(self, path: Path) -> None:
        """Delete a checkpoint; it stops being one before the first of its files goes."""
        trash = path.with_name(path.name + _TRASH)
        shutil.rmtree(trash, ignore_errors=True)
        path.rename(trash)
        shutil.rmtree(trash)

    def _remove_leftovers(self) -> None:
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name.endswith((_PARTIAL, _TRASH)):
                    logger.info("removing %s, left behind by a run that was killed", path)
                    shutil.rmtree(path)


@contextlib.contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    """Leave no folder behind when the body fails: what it takes up may be what is missing."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _nothing(_: Path) -> None:
    """Write nothing more."""


def _save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Save a state and make sure that it loads without running code."""
    import torch

    with path.open("wb") as file:  # torch's own files say of a full disk that something was unexpected
        torch.save(dict(state), file)
    try:
        torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(
            f"{path}: the state holds something other than tensors, numbers, texts, lists and dicts ({error})"
        ) from error


def _write_manifest(directory: Path, step: int) -> None:
    """Force every file to disk and describe it; then the manifest, then the directories."""
    files = {}
    for path in sorted(item for item in directory.rglob("*") if item.is_file()):
        _sync_file(path)
        files[path.relative_to(directory).as_posix()] = {"size": path.stat().st_size, "digest": _digest(path)}
    manifest = directory / MANIFEST_FILE
    manifest.write_text(json.dumps({"format": _FORMAT, "step": step, "files": files}, indent=1) + "\n")
    _sync_file(manifest)
    for path in [*(item for item in directory.rglob("*") if item.is_dir()), directory]:
        _sync_directory(path)


def _damage(directory: Path, *, read_contents: bool = True) -> str | None:
    """Return what is wrong with a checkpoint, None when it is complete."""
    try:
        manifest = json.loads((directory / MANIFEST_FILE).read_text())
        files = manifest["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read: {error}"
    for name, expected in files:
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['size']}"
        if read_contents and _digest(path) != expected["digest"]:
            return f"{name} has other contents than were saved"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Make new names in a directory survive a power cut, where the system can (Windows cannot)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
