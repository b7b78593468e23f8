"""What a run is called in a table: its method after the paper's rows, and what tells it from others of that name."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from srpo_envs.errors import SrpoError
from srpo_envs.registry import EnvSpec, Pairing, accepted_arguments, spec
from srpo_train.config import EnvConfig, Recipe
from srpo_train.metrics import names_below

_OBJECTIVES = {
    "srpo": "Setwise SRPO",
    "srpo_none": "Setwise SRPO, joint sum",
    "srpo_mean": "Setwise SRPO, joint mean",
    "dr_mas": "Dr. MAS",
    "dr_mas_trajectory": "Dr. MAS, trajectory-weighted",
    "gigpo": "GiGPO",
}
"""Presets whose name is more than their key in capitals."""

_HOUSEKEEPING = ("log", "train.checkpoint_every", "train.keep_last", "engine.served")

Choices = Mapping[str, Any]
"""Every choice that could move a run's numbers, by dotted key; runs that differ by seed alone have the same."""


def method_name(recipe: Recipe, lines: Sequence[Mapping[str, float]] = ()) -> str:
    """Return a name after the rows of the paper's tables, such as ``LLM sharing Dr. MAS``.

    Args:
        recipe: The run.
        lines: Its metrics, which show whether one agent acts alone.
    """
    preset = recipe.objective.preset
    objective = _OBJECTIVES.get(preset, preset.upper().replace("_", "-"))
    if _acts_alone(lines):
        return f"Single-agent {objective.removeprefix('Setwise ')}"
    if len(recipe.policies) > 1:
        return f"LLM non-sharing {objective}"
    return objective if objective.startswith("Setwise") else f"LLM sharing {objective}"


def model_name(recipe: Recipe) -> str:
    """Return the base models of a run."""
    return ", ".join(sorted({policy.model for policy in recipe.policies.values()}))


def choices_of(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's choices by dotted key, without seed, name, place and housekeeping."""
    content = recipe.model_dump(mode="json", exclude_none=True, exclude={"seed", "name", "output_dir"})
    return {key: value for key, value in _flat(content).items() if not _is_housekeeping(key)}


def task_set_of(env: EnvConfig) -> tuple[str, str]:
    """Return what identifies the tasks of an environment whoever works on them, and a name for them.

    A registered pair of workflow and task family is known by the family's arguments, so that a single agent and a team
    on the same questions compare. Anything else is known by its id and all of its arguments.
    """
    pairing = _pairing(env.id)
    if pairing is None:
        return json.dumps([env.id, env.kwargs], sort_keys=True), _named(_short_id(env.id), env.kwargs)
    parameters = accepted_arguments(pkgutil.resolve_name(pairing.family))
    given = {name: value for name, value in env.kwargs.items() if name in parameters}
    whole = {name: item.default for name, item in parameters.items() if item.default is not item.empty} | given
    return json.dumps([pairing.family, whole], sort_keys=True, default=str), _named(
        pairing.family.rpartition(":")[2], given
    )


def told_apart(choices: Sequence[Choices]) -> list[str]:
    """Return for each of several choices what sets it apart; empty for one that only lacks keys of others.

    Example:
        >>> told_apart([{"optim.lr": 1e-4}, {"optim.lr": 1e-4, "objective.scaling": "none"}])
        ['', 'scaling=none']
    """
    keys = sorted({key for one in choices for key in one})
    varied = [key for key in keys if len({_written(one.get(key)) for one in choices}) > 1]
    return [", ".join(_choice(key, one[key], varied) for key in varied if key in one) for one in choices]


def _acts_alone(lines: Sequence[Mapping[str, float]]) -> bool:
    sizes = [line[name] for line in lines for name in line if name.startswith("rollout/cardinality/")]
    return len(names_below(lines, "rollout/response_length/")) == 1 and bool(sizes) and max(sizes) == 1.0


def _pairing(env_id: str) -> Pairing | None:
    """The pair behind an id; None where the id is unknown here or makes something else."""
    try:
        found: EnvSpec = spec(env_id)
    except SrpoError:
        return None
    return found.entry_point if isinstance(found.entry_point, Pairing) else None


def _named(name: str, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return f"{name} ({given})" if given else name


def _choice(key: str, value: Any, varied: Sequence[str]) -> str:
    if key == "env.id":
        return _short_id(value)
    last = key.rpartition(".")[2]
    is_unique = sum(other.rpartition(".")[2] == last for other in varied) == 1
    return f"{last if is_unique else key}={value}"


def _short_id(env_id: str) -> str:
    return env_id.rpartition("/")[2]


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _is_housekeeping(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in _HOUSEKEEPING)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return flat
