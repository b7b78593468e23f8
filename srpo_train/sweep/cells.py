"""The cells of a sweep: resolved and checked before anything starts, and where each of their runs stands.

A cell is one configuration, a run is a cell with a seed. Every run has an ordinary run directory,
``<out>/<cell>/seed-<s>/``, so that `srpo train`, `srpo report` and all other commands take it as they take any other.
The index ``<out>/cells.json`` lists the cells in the order of the sweep, for tables.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.errors import ConfigError, RecordError, SrpoError
from srpo_train.config import Recipe, flatten, load_recipe, parse_recipe, read_toml
from srpo_train.metrics import read_metrics
from srpo_train.run_dir import RECIPE_FILE, locked, may_change, write_whole
from srpo_train.sweep.spec import Sweep, Variant, merge, nested

INDEX_FILE = "cells.json"
"""Lists every cell of a sweep directory."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One configuration of a sweep.

    Example:
        ``Cell(label="SRPO, num_solvers = 3", folder="srpo_num_solvers=3", settings={"env.kwargs.num_solvers": 3})``
    """

    label: str
    """Its name in tables."""
    folder: str
    """Its directory below that of the sweep."""
    group: str = ""
    """Heading in tables above it and its like."""
    settings: Mapping[str, Any]
    """Dotted keys that distinguish it, and their values."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One cell with one seed."""

    cell: Cell
    """What is trained."""
    recipe: Recipe
    """The same, resolved, with the seed and the directory."""

    @property
    def run_dir(self) -> Path:
        """Directory of the run."""
        return self.recipe.run_dir

    @property
    def name(self) -> str:
        """Cell and seed, for messages."""
        return f"{self.cell.label}, seed {self.recipe.seed}"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a run is."""

    num_steps: int = 0
    """Training steps on disk; after a kill those since the last checkpoint are taken again."""
    share: float = 0.0
    """Part of the run that is done, by steps or by token budget, whichever ends it."""
    accuracy: float | None = None
    """Newest held-out accuracy."""
    seconds: float = 0.0
    """Time of the training steps and evaluations so far."""
    is_finished: bool = False
    """Whether it is at its end, and saved."""


def list_runs(sweep: Sweep) -> list[Run]:
    """Resolve all cells of a sweep, first all with the first seed, then with the next.

    Raises:
        ConfigError: what is wrong with each cell that cannot be resolved, or two that share a directory.
    """
    return resolve(list(_cells(sweep)), seeds=sweep.seeds, out=sweep.out)


def resolve(found: Sequence[tuple[Cell, Mapping[str, Any]]], *, seeds: Iterable[int], out: str) -> list[Run]:
    """Return the runs of cells, first all with the first seed, then with the next.

    Args:
        found: Cells and the recipes they make, not yet checked.
        seeds: Those of every cell.
        out: Directory that holds those of the cells.

    Raises:
        ConfigError: what is wrong with each cell that cannot be resolved, or two that share a directory.
    """
    _refuse_shared_folders([cell for cell, _ in found])
    runs, problems = [], []
    for seed, (cell, data) in itertools.product(seeds, found):
        place = {"seed": seed, "name": f"seed-{seed}", "output_dir": str(Path(out) / cell.folder)}
        try:
            runs.append(Run(cell=cell, recipe=parse_recipe({**data, **place}, source=f"cell {cell.label!r}")))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return runs


def check_runs(runs: Iterable[Run]) -> None:
    """Find what is wrong with a cell once its environment, objective and policies are looked at, as a dry run does.

    Raises:
        ConfigError: all that is wrong, one line each.
    """
    from srpo_train.plan import make_plan

    problems = []
    for run in {run.cell.folder: run for run in runs}.values():
        try:
            make_plan(run.recipe)
        except SrpoError as error:
            problems.append(f"cell {run.cell.label!r}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))


@contextlib.contextmanager
def claim(out: str | Path, runs: Sequence[Run]) -> Iterator[None]:
    """Make a sweep's directory this process's own while the body runs, with a recipe in every run directory.

    Runs that are there already stay as they are, and cells that the sweep no longer has stay listed.

    Raises:
        ConfigError: another sweep is running there, or a run was begun with another recipe.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "another sweep is running there; wait for it, or use another --out"):
        _refuse_changes(runs)
        now = {run.cell.folder: run.cell for run in runs}
        cells = now | {cell.folder: cell for cell in _known_cells(out) if cell.folder not in now}
        write_whole(out / INDEX_FILE, json.dumps([vars(cell) for cell in cells.values()], indent=1) + "\n")
        for run in runs:
            run.run_dir.mkdir(parents=True, exist_ok=True)
            write_whole(run.run_dir / RECIPE_FILE, run.recipe.to_toml())
        yield


def read_cells(out: str | Path) -> list[Cell]:
    """Return the cells of a sweep directory.

    Raises:
        RecordError: it is not the directory of a sweep, or its index is damaged.
    """
    if cells := _known_cells(Path(out)):
        return cells
    raise RecordError(f"{out}: no {INDEX_FILE}; is it the directory of a sweep?")


def list_run_dirs(out: str | Path, cell: Cell) -> list[Path]:
    """Return the run directories that a cell has, by seed; anything else that lies there is not one."""
    folders = [folder for folder in (Path(out) / cell.folder).glob("seed-*") if folder.name[5:].isdecimal()]
    return sorted(folders, key=lambda folder: int(folder.name[5:]))


def read_run(run_dir: Path) -> tuple[Recipe, list[dict[str, float]]] | None:
    """Return the recipe of a run, with the directory where it lies now, and its metrics; None where there is no run."""
    if not (run_dir / RECIPE_FILE).is_file():
        return None
    recipe = load_recipe(run_dir / RECIPE_FILE)
    here = {"name": run_dir.name, "output_dir": str(run_dir.parent)}  # it may have moved
    return recipe.model_copy(update=here), read_metrics(run_dir)


def standing(recipe: Recipe) -> Standing:
    """Return how far the run of a recipe is."""
    lines = read_metrics(recipe.run_dir)
    if not lines:
        return Standing()
    step = int(lines[-1]["step"])
    share = step / recipe.train.num_steps
    if recipe.train.token_budget:
        share = max(share, sum(line.get("rollout/num_tokens", 0.0) for line in lines) / recipe.train.token_budget)
    accuracy = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
    is_saved = (recipe.run_dir / "checkpoints" / f"step-{step:06d}").is_dir()
    return Standing(
        num_steps=step,
        share=min(share, 1.0),
        accuracy=accuracy[-1] if accuracy else None,
        seconds=sum(line.get("time/step_s", 0.0) + line.get("time/eval_s", 0.0) for line in lines),
        is_finished=share >= 1 and is_saved,
    )


def _refuse_shared_folders(cells: Iterable[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        if not cell.folder:
            raise ConfigError(f"cell {cell.label!r}: no letter or digit to name its directory after; give it a label")
        if (other := seen.setdefault(cell.folder, cell)) is not cell:
            raise ConfigError(
                f"cells {other.label!r} and {cell.label!r} would share the directory {cell.folder!r}; "
                "give them labels that differ more"
            )


def _cells(sweep: Sweep) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Yield every cell and the recipe it makes, not yet checked."""
    axes = flatten(sweep.axes)
    names = _short_names(axes)
    for variant in sweep.variants or (Variant(label=Path(sweep.recipe).stem),):
        below = merge(merge(read_toml(Path(variant.recipe or sweep.recipe)), sweep.set), variant.set)
        for values in itertools.product(*axes.values()):
            settings = dict(zip(axes, values, strict=True))
            data = below
            for key, value in settings.items():
                data = merge(data, nested(key.split("."), value))
            chosen = {names[key]: _text(value) for key, value in settings.items()}
            labels = [variant.label] if sweep.variants or not axes else []
            cell = Cell(
                label=", ".join([*labels, *(f"{name} = {value}" for name, value in chosen.items())]),
                folder="_".join(slug(part) for part in [*labels, *(f"{n}={v}" for n, v in chosen.items())]),
                group=variant.group,
                settings=flatten(variant.set) | settings,
            )
            yield cell, data


def _short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each dotted key, or all of it where another key ends alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def slug(text: str) -> str:
    """Return a text as a part of a directory's name; dots stay within numbers."""
    return re.sub(r"(?:[^\w=.+-]|\.(?!\d))+", "-", text.replace(" = ", "=")).strip("-").lower()


def _known_cells(out: Path) -> list[Cell]:
    index = out / INDEX_FILE
    try:
        return [Cell(**entry) for entry in json.loads(index.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise RecordError(f"{index}: not a list of cells ({error}); the file is damaged, remove it") from error


def _refuse_changes(runs: Iterable[Run]) -> None:
    problems = []
    for run in runs:
        path = run.run_dir / RECIPE_FILE
        if not path.exists() or not read_metrics(run.run_dir):  # nothing was measured yet: it may still change
            continue
        stored, wanted = (flatten(recipe.model_dump(exclude_none=True)) for recipe in (load_recipe(path), run.recipe))
        changes = [
            f"{key} = {_text(stored.get(key, 'unset'))}, now {_text(wanted.get(key, 'unset'))}"
            for key in sorted(stored.keys() | wanted.keys())
            if stored.get(key) != wanted.get(key) and not may_change(key, run.recipe)
        ]
        if changes:
            problems.append(f"{run.name}: was begun with {'; '.join(changes)}")
    if problems:
        raise ConfigError("\n".join([*problems, "use another --out, or remove these runs"]))
