"""Environments and policies as people name them on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srpo_envs.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from srpo_train.config import Recipe
    from srpo_train.engines.base import Engine


def parse_arguments(texts: Sequence[str], split: str = "") -> dict[str, Any]:
    """Read ``name=value`` environment arguments; values are TOML, or text.

    Raises:
        ConfigError: there is no ``=``.
    """
    from srpo_train.config import parse_override

    arguments: dict[str, Any] = {"split": split} if split else {}
    for text in texts:
        keys, value = parse_override(text, "--arg name=value, such as --arg level=3")
        table = arguments
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = value
    return arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySource:
    """Where policies come from: a run's checkpoint, or one model for every role."""

    name: str
    """As shown."""
    specs: dict[str, dict[str, Any]]
    """Policy id to the arguments of `Policy.load`."""
    roles: dict[str, str]
    """Role to policy id."""
    recipe: Recipe | None
    """The run's recipe; None for a model."""


def find_policies(text: str, *, step: int = -1, device: str = "auto") -> PolicySource:
    """Read a run directory, or take the text for a model.

    Args:
        text: Directory of a run, or what ``policies.<id>.model`` of a recipe may be.
        step: Checkpoint of a run; the newest when negative.
        device: Where a model runs; a run says itself.

    Raises:
        CheckpointError: the run has no such checkpoint.
        ConfigError: a step is given for a model.
    """
    if (Path(text) / "recipe.toml").is_file():
        return _policies_of_run(Path(text), step)
    if step >= 0:
        raise ConfigError(f"--step {step}: {text!r} is not the directory of a run, so it has no checkpoints")
    return PolicySource(
        name=text, specs={"policy": {"source": text, "device": device}}, roles={"*": "policy"}, recipe=None
    )


def _policies_of_run(run_dir: Path, step: int) -> PolicySource:
    from srpo_train.checkpoint import CheckpointStore
    from srpo_train.config import load_recipe

    recipe = load_recipe(run_dir / "recipe.toml")
    store = CheckpointStore(run_dir / "checkpoints", is_read_only=True)
    checkpoint = store.at(step) if step >= 0 else store.latest()
    if checkpoint is None:
        raise CheckpointError(f"{run_dir}: no checkpoint yet; the first comes at step {recipe.train.checkpoint_every}")
    return PolicySource(
        name=f"{run_dir} at step {checkpoint.step}",
        specs=recipe.policy_specs(checkpoint.path),
        roles=recipe.role_table,
        recipe=recipe,
    )


def load_engines(source: PolicySource) -> dict[str, Engine]:
    """Load every policy of a source and return an engine for each."""
    from srpo_train.engines.transformers import TransformersEngine
    from srpo_train.policies.team import Team

    hide_transformers_progress()
    return {policy.policy_id: TransformersEngine(policy) for policy in Team.load(source.specs, source.roles)}


def hide_transformers_progress() -> None:
    """Turn off the bars transformers draws for every file it reads or writes; they tear ours apart."""
    from transformers.utils import logging

    logging.disable_progress_bar()
