"""Where the parts of a run are that are not its update: environments, engines, and who watches.

The training loop asks a `Places` for them and knows no more. Without anything else they are in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError
from srpo_train.collect.environments import World
from srpo_train.config import EnvConfig, Recipe
from srpo_train.engines.base import Engine
from srpo_train.engines.making import make_engines
from srpo_train.metrics import Sink, Values
from srpo_train.policies.policy import Policy
from srpo_train.tracking.terminal import TerminalSink


class Places(Protocol):
    """Gives a training loop what it works with."""

    @property
    def is_sampling_elsewhere(self) -> bool:
        """Whether engines hold copies of the weights outside the ranks; then the main rank alone asks them."""
        ...

    @property
    def num_engines(self) -> int:
        """Processes beside the ranks that sample."""
        ...

    def worlds(self, config: EnvConfig) -> Callable[[], World]:
        """Return what makes one environment after another."""
        ...

    def engines(self, policies: Iterable[Policy]) -> dict[str, Engine]:
        """Return an engine for each policy, by policy id, with the policies' weights in it.

        Raises:
            EngineError: an engine cannot be started, or does not take the weights.
        """
        ...

    def watcher(self, done_steps: int) -> Sink:
        """Return where a person sees the run go on.

        Args:
            done_steps: Steps that an earlier part of the run has taken.
        """
        ...

    def metrics(self) -> Values:
        """Return what has happened to them so far, under names of the table of metrics."""
        ...


class Here:
    """Everything in this process, but for servers that the recipe names.

    Args:
        recipe: The run.

    Raises:
        ConfigError: it wants servers that only Ray would start.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        if recipe.engine.served and not recipe.engine.served.servers:
            raise ConfigError(
                'engine.served.servers: is empty; name the servers of each policy, or let "srpo train --ray" start '
                "ray.engines_per_policy of them"
            )

    @property
    def is_sampling_elsewhere(self) -> bool:
        """Whether the recipe names servers."""
        return self._recipe.engine.kind == "served"

    @property
    def num_engines(self) -> int:
        """Servers that the recipe names."""
        return self._recipe.engine.num_servers

    def worlds(self, config: EnvConfig) -> Callable[[], World]:
        """Return what makes one environment after another."""
        return env_factory(config)

    def engines(self, policies: Iterable[Policy]) -> dict[str, Engine]:
        """Return the engines of the recipe."""
        return make_engines(policies, self._recipe.engine)

    def watcher(self, done_steps: int) -> Sink:
        """Return the terminal."""
        return TerminalSink(self._recipe.train.num_steps, done_steps=done_steps)

    def metrics(self) -> Values:
        """Return nothing: what fails here fails with the run."""
        return {}


def env_factory(config: EnvConfig) -> Callable[[], SetEnv]:
    """Return what makes one environment of a recipe after another, in this process."""
    return lambda: srpo_envs.make(config.id, **config.kwargs)
