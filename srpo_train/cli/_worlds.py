"""Environments and policies as people name them on the command line."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from urllib.parse import parse_qsl

from srpo_envs.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from srpo_train.config import EngineConfig, Recipe
    from srpo_train.engines.agent import Agent
    from srpo_train.engines.base import Engine

logger = logging.getLogger(__name__)

EngineKind = Literal["recipe", "transformers", "vllm"]
"""What samples from models in this process; `recipe` takes what the recipe says, where it can be had here."""

_ENDPOINTS = ("http://", "https://")
_AGENT = "agent:"


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
    """Where answers come from: a run's checkpoint, or one model, endpoint or agent for every role."""

    name: str
    """As shown."""
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Policy id to the arguments of `Policy.load`; empty for an endpoint or an agent."""
    roles: dict[str, str] = field(default_factory=lambda: {"*": "policy"})
    """Role to policy id."""
    recipe: Recipe | None = None
    """The recipe of a run or of a file; None for anything else."""
    run_dir: Path | None = None
    """Directory of a run; None for anything else."""
    step: int | None = None
    """Training step of a run's weights; None for anything else."""

    @property
    def source(self) -> str:
        """What is meant, without what changes from call to call: the step of a run, the settings of an endpoint."""
        if self.run_dir is not None:
            return str(self.run_dir)
        url, _, query = self.name.partition("?")
        model = dict(parse_qsl(query)).get("model")
        return f"{url}?model={model}" if self.name.startswith(_ENDPOINTS) and model else url

    @property
    def model(self) -> str:
        """The models behind the policies."""
        if self.recipe is None:
            return self.source.rpartition("?model=")[2]
        return ", ".join(sorted({policy.model for policy in self.recipe.policies.values()}))


def find_policies(text: str, *, step: int = -1, device: str = "auto") -> PolicySource:
    """Read a run or a recipe, or take the text for a model, the URL of an endpoint, or ``agent:module:function``.

    Args:
        text: Directory of a run; a recipe, whose policies are taken as training would begin with them; a URL as
            `OpenAIEngine.open` takes it; an agent; or what ``policies.<id>.model`` of a recipe may be.
        step: Checkpoint of a run; the newest when negative.
        device: Where a model runs; a run says itself.

    Raises:
        CheckpointError: the run has no such checkpoint.
        ConfigError: a step is given for what is no run, or a recipe is wrong.
    """
    if (Path(text) / "recipe.toml").is_file():
        return _policies_of_run(Path(text), step)
    if step >= 0:
        raise ConfigError(f"--step {step}: {text!r} is not the directory of a run, so it has no checkpoints")
    if text.endswith(".toml"):
        return _policies_of_recipe(text)
    if text.startswith((*_ENDPOINTS, _AGENT)):
        return PolicySource(name=text)
    return PolicySource(name=text, specs={"policy": {"source": text, "device": device}})


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
        run_dir=run_dir,
        step=checkpoint.step,
    )


def _policies_of_recipe(path: str) -> PolicySource:
    from srpo_train.config import load_recipe

    recipe = load_recipe(path)
    return PolicySource(name=path, specs=recipe.policy_specs(), roles=recipe.role_table, recipe=recipe)


@contextlib.contextmanager
def open_engines(source: PolicySource, kind: EngineKind = "recipe") -> Iterator[dict[str, Engine]]:
    """Load every policy of a source for the time of the body; see `load_engines`."""
    engines = load_engines(source, kind)
    try:
        yield engines
    finally:
        for engine in engines.values():
            engine.close()


def load_engines(source: PolicySource, kind: EngineKind = "recipe") -> dict[str, Engine]:
    """Load every policy of a source and return an engine for each.

    Args:
        source: The policies.
        kind: What samples from models; a recipe's own settings of it are used. Endpoints and agents answer themselves.

    Raises:
        ConfigError: an agent cannot be found, or the URL of an endpoint is wrong.
        EngineError: an endpoint does not answer.
        MissingExtraError: vLLM is asked for and not installed.
        PolicyLoadError: a model cannot be loaded.
    """
    if source.name.startswith(_AGENT):
        from srpo_train.engines.agent import AgentEngine

        return {"policy": AgentEngine("policy", find_agent(source.name.removeprefix(_AGENT)))}
    if source.name.startswith(_ENDPOINTS):
        from srpo_train.engines.openai import OpenAIEngine

        return {"policy": OpenAIEngine.open("policy", source.name)}
    from srpo_train.engines.making import make_engines
    from srpo_train.policies.team import Team

    hide_transformers_progress()
    return make_engines(Team.load(source.specs, source.roles), _engine_config(source, kind))


def _engine_config(source: PolicySource, kind: EngineKind) -> EngineConfig:
    from srpo_train.config import EngineConfig

    own = source.recipe.engine if source.recipe else EngineConfig()
    if kind == "recipe":
        # Not the recipe's servers: they are those of its training, which may be at work with other weights.
        has_own = own.kind == "transformers" or (own.kind == "vllm" and importlib.util.find_spec("vllm"))
        if not has_own:
            logger.warning("sampling with transformers here, not with the recipe's engine %r", own.kind)
        return own if has_own else EngineConfig()
    return own if own.kind == kind else EngineConfig(kind=kind)


def read_engine_kind(text: str) -> EngineKind:
    """Read ``--engine``.

    Raises:
        ConfigError: there is no such engine.
    """
    kinds = get_args(EngineKind)
    if text not in kinds:
        raise ConfigError(f"--engine {text}: expected {', '.join(kinds[:-1])} or {kinds[-1]}")
    return cast("EngineKind", text)


def find_agent(name: str) -> Agent:
    """Import ``module:function``; modules of the working directory are found.

    Raises:
        ConfigError: there is none.
    """
    module, _, function = name.partition(":")
    try:
        agent: Agent = getattr(importlib.import_module(module), function)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"agent:{name}: expected agent:module:function, such as agent:my_agents:solve ({error})"
        ) from error
    if not callable(agent):
        raise ConfigError(f"agent:{name}: expected a function, got {type(agent).__name__}")
    return agent


def hide_transformers_progress() -> None:
    """Turn off the bars transformers draws for every file it reads or writes; they tear ours apart."""
    from transformers.utils import logging

    logging.disable_progress_bar()
