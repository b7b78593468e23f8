"""Which runs and evaluations there are below the directories that were named, and what they say of themselves."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from srpo_envs.audit import episode_files
from srpo_envs.errors import RecordError, SrpoError, UnknownIdError, near_miss
from srpo_train.checkpoint import CheckpointStore
from srpo_train.config import Recipe, load_recipe
from srpo_train.evaluation.plan import PLAN_FILE
from srpo_train.evaluation.results import RESULTS_FILE
from srpo_train.metrics import METRICS_FILE
from srpo_train.run_dir import RECIPE_FILE
from srpo_train.viewer.text import one_line

_MAX_DEPTH = 4
_NOT_RUNS = ("checkpoints", "events", "tensorboard", "wandb")
_SEARCH_EVERY_S = 5.0
_LIVE_S = 120.0


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run or an evaluation on disk."""

    key: str
    """How it is called: its path below what was named."""
    path: Path
    """Its directory, resolved."""
    kind: Literal["run", "evaluation"]
    """An evaluation has episodes and no curves."""

    @property
    def is_there(self) -> bool:
        """Whether its directory still exists."""
        return self.path.is_dir()

    @property
    def recipe(self) -> Recipe:
        """The recipe of a run.

        Raises:
            ConfigError: it is missing or damaged.
        """
        return load_recipe(self.path / RECIPE_FILE)


class Catalogue:
    """The runs below some directories; those that begin later join.

    Only what lies below them, and what was asked for by the name it was given here, is ever opened.

    Args:
        roots: Directories of runs or of evaluations, or folders of them.

    Raises:
        RecordError: one of them is neither and holds neither; says what to do.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(dict.fromkeys(root.resolve() for root in roots))
        self._lock = threading.Lock()
        self._searched_at = 0.0
        self._places: dict[str, RunPlace] = {}
        self._seen: dict[str, RunPlace] = {}  # also those that are gone
        for root in self._roots:
            _require(root)
        self.places()

    def places(self) -> list[RunPlace]:
        """Return the runs there are, by name; one whose directory was deleted is no longer among them."""
        return [place for place in self._found().values() if place.is_there]

    def __getitem__(self, key: str) -> RunPlace:
        """Return a run by its name.

        Raises:
            UnknownIdError: there is none.
            RecordError: there is none any more.
        """
        place = self._found().get(key) or self._seen.get(key)
        if place is None:
            raise UnknownIdError(f"no run {key!r}{near_miss(key, self._found())}")
        if not place.is_there:
            raise RecordError(f"run {key!r} is gone: {place.path} was deleted or moved")
        return place

    def _found(self) -> dict[str, RunPlace]:
        with self._lock:
            if time.monotonic() - self._searched_at > _SEARCH_EVERY_S or not self._places:
                self._places = self._find()
                self._seen |= self._places
                self._searched_at = time.monotonic()
            return self._places

    def _find(self) -> dict[str, RunPlace]:
        found: dict[str, RunPlace] = {}
        for root in self._roots:
            for place in sorted(_places_below(root, root.name), key=lambda place: place.key):
                if any(place.path == other.path for other in found.values()):
                    continue
                key = next(name for name in _names(place.key) if name not in found)
                found[key] = RunPlace(key, place.path, place.kind)
        return found


def describe(place: RunPlace, last_step: int | None) -> dict[str, Any]:
    """Return what a list of runs shows of one, as JSON values.

    Args:
        place: The run.
        last_step: Newest step that was measured; None before any.
    """
    shown: dict[str, Any] = {"key": place.key, "kind": place.kind, "name": place.path.name, "last_step": last_step}
    if place.kind == "evaluation":
        return shown
    try:
        recipe = place.recipe
    except SrpoError as error:
        return shown | {"problem": one_line(str(error), 400)}
    return shown | {
        "env": recipe.env.id.split("/")[-1],
        "objective": recipe.objective.preset,
        "policies": list(recipe.policies),
        "models": sorted({policy.model for policy in recipe.policies.values()}),
        "num_steps": recipe.train.num_steps,
        "is_live": _is_live(place.path) and (last_step or 0) < recipe.train.num_steps,
        "keeps_events": recipe.log.save_events,
        "checkpoints": checkpoints(place),
    }


def checkpoints(place: RunPlace) -> list[dict[str, int]]:
    """Return the checkpoints of a run, oldest first, with the bytes its weights take on disk."""
    found = []
    for manifest in (place.path / "checkpoints").glob("step-*/manifest.json"):
        number = manifest.parent.name.removeprefix("step-")
        with contextlib.suppress(OSError):  # a run that trains removes old ones at any time
            if number.isdecimal():
                weights = manifest.parent.glob("*/*.safetensors")
                found.append({"step": int(number), "num_bytes": sum(path.stat().st_size for path in weights)})
    return sorted(found, key=lambda checkpoint: checkpoint["step"])


def checkpoint_store(place: RunPlace) -> CheckpointStore:
    """Return a run's checkpoints, for reading."""
    return CheckpointStore(place.path / "checkpoints", is_read_only=True)


def _require(root: Path) -> None:
    if not root.is_dir():
        raise RecordError(f"{root}: no such directory; name the directory of a run, such as runs/tiny-arithmetic")
    if not any(True for _ in _places_below(root, root.name)):
        raise RecordError(
            f"{root}: neither a run ({RECIPE_FILE}, {METRICS_FILE}) nor an evaluation ({PLAN_FILE}, {RESULTS_FILE}), "
            "and none lies below it; `srpo train RECIPE` makes a run in runs/NAME"
        )


def _places_below(directory: Path, key: str, depth: int = 0) -> Iterator[RunPlace]:
    kind = _kind_of(directory)
    if kind is not None:
        yield RunPlace(key, directory.resolve(), kind)
    if kind == "evaluation" or depth == _MAX_DEPTH:
        return
    for child in _folders(directory):
        name = child.name if depth == 0 and kind is None else f"{key}/{child.name}"
        yield from _places_below(child, name, depth + 1)


def _folders(directory: Path) -> list[Path]:
    """The folders that may be runs; none where the directory is gone meanwhile, or not ours to read."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return sorted(
            Path(entry.path)
            for entry in entries
            if not entry.name.startswith(".") and entry.name not in _NOT_RUNS and entry.is_dir(follow_symlinks=False)
        )
    return []


def _kind_of(directory: Path) -> Literal["run", "evaluation"] | None:
    if any((directory / name).is_file() for name in (RECIPE_FILE, METRICS_FILE)):
        return "run"
    if any((directory / name).is_file() for name in (PLAN_FILE, RESULTS_FILE)):
        return "evaluation"
    if (directory / "events").is_dir() and episode_files(directory):
        return "run"
    return None


def _names(key: str) -> Iterator[str]:
    yield key
    yield from (f"{key} ({number})" for number in itertools.count(2))


def _is_live(run_dir: Path) -> bool:
    try:
        return time.time() - (run_dir / METRICS_FILE).stat().st_mtime < _LIVE_S
    except OSError:
        return False
