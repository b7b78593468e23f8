"""What a sweep file says: base recipes, what is varied, seeds.

A sweep is a TOML file of its own, or a recipe with ``--grid`` on the command line. The `axes` are multiplied with each
other and with the `variants`, so this makes six cells, each trained with every seed::

    recipe = "../recipes/tiny-arithmetic.toml"   # relative to this file
    seeds = [0, 1, 2]

    [set]                                        # holds for every cell
    train.token_budget = 100_000

    [axes]                                       # keys of a recipe, with a list of values each
    env.kwargs.num_solvers = [1, 3, 5]

    [[variants]]
    label = "SRPO"

    [[variants]]
    label = "GRPO"
    set.objective.preset = "grpo"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt, Strict, model_validator

from srpo_train.config import check_section, flatten, parse_override, read_toml
from srpo_train.section import Section

OWN_KEYS = ("seed", "name", "output_dir")
"""Keys of a recipe that each run of a sweep is given; they distinguish no cells."""


class Variant(Section):
    """One named way to train."""

    label: Annotated[str, Field(min_length=1)]
    """Its name in tables; the directory is named after it."""
    group: str = ""
    """Heading in the table, shared with the variants of the same group."""
    recipe: str = ""
    """Recipe it starts from, relative to the sweep file; the sweep's own when empty."""
    set: dict[str, Any] = Field(default={})
    """Keys of the recipe that it changes."""


class Sweep(Section):
    """A grid of runs, completely described."""

    out: str
    """Directory of the sweep; `runs/` and the name of its file when left out."""
    recipe: str = ""
    """Recipe of every variant that names none, relative to the sweep file."""
    set: dict[str, Any] = Field(default={})
    """Keys of the recipes that are changed for all cells; those of a variant win."""
    axes: dict[str, Any] = Field(default={})
    """Keys of the recipes with a list of values each; every combination is a cell."""
    variants: Annotated[tuple[Variant, ...], Strict(False)] = ()
    """Named ways to train; without any there is one, the recipe as it is."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Strict(False), Field(min_length=1)] = (0, 1, 2)
    """`seed` of the runs of each cell."""
    processes: PositiveInt = 2
    """Runs that train at once."""

    @model_validator(mode="after")
    def _axes_hold_lists(self) -> Sweep:
        for key, values in flatten(self.axes).items():
            if key in OWN_KEYS:
                raise ValueError(f"axes.{key}: every run has its own; use seeds for several seeds")
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"axes.{key}: should be a list of values, got {values!r}")
        return self

    @model_validator(mode="after")
    def _everything_is_named_once(self) -> Sweep:
        labels = [variant.label for variant in self.variants]
        for name, items in {"seeds": self.seeds, "variants": labels}.items():
            if twice := sorted({str(item) for item in items if items.count(item) > 1}):
                raise ValueError(f"{name}: should differ from each other, got {', '.join(twice)} twice")
        return self

    @model_validator(mode="after")
    def _has_recipes(self) -> Sweep:
        without = [f"variant {variant.label!r}" for variant in self.variants if not variant.recipe]
        if not self.recipe and (without or not self.variants):
            raise ValueError(f"recipe: {(without or ['the sweep'])[0]} has none; name one, relative to the sweep file")
        return self


def load_sweep(path: str | Path, grid: Sequence[str] = (), changes: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file, or take a recipe as the base of one, and check it; its cells are checked by `list_runs`.

    Args:
        path: A sweep file or a recipe.
        grid: ``dotted.key=value,value``, each an axis; one of the same key in the file is replaced.
        changes: Fields of `Sweep` that replace those of the file.

    Raises:
        ConfigError: the file or an axis cannot be read, a key is unknown, or a value cannot be used.

    Example:
        >>> load_sweep("recipes/tiny-arithmetic.toml", ["objective.scaling=sqrt,none"]).axes  # doctest: +SKIP
        {'objective': {'scaling': ['sqrt', 'none']}}
    """
    path = Path(path)
    data = read_toml(path)
    if "env" in data or "policies" in data:
        data = {"recipe": path.name, "out": f"runs/{path.stem}-sweep"}
    for text in grid:
        data["axes"] = merge(data.get("axes", {}), parse_axis(text))
    sweep = check_section(Sweep, {"out": f"runs/{path.stem}"} | data | dict(changes or {}), source=str(path))
    return sweep.model_copy(update=_recipes_from(path.parent, sweep))


def parse_axis(text: str) -> dict[str, Any]:
    """Read ``dotted.key=value,value`` into nested mappings with a list of TOML values, or texts, at the end.

    Where the right side is a TOML list, its items are the values; so may a value hold commas.

    Raises:
        ConfigError: there is no ``=`` or no key.
    """
    keys, value = parse_override(text, "--grid section.key=value,value, such as --grid objective.scaling=sqrt,none")
    if not isinstance(value, list):
        value = [parse_override(f"value={part}")[1] for part in text.partition("=")[2].split(",")]
    return nested(keys, value)


def nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return the mapping that holds a value below a path of keys."""
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one nested mapping over another: tables are joined, any other value is replaced."""
    joined = dict(below)
    for key, value in above.items():
        under = below.get(key)
        joined[key] = merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return joined


def _recipes_from(folder: Path, sweep: Sweep) -> dict[str, Any]:
    """The recipes' paths, now relative to the working directory."""
    variants = tuple(
        variant.model_copy(update={"recipe": str(folder / variant.recipe)}) if variant.recipe else variant
        for variant in sweep.variants
    )
    return {"recipe": str(folder / sweep.recipe) if sweep.recipe else "", "variants": variants}
