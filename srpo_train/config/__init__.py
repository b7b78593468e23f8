"""Every knob of a run: frozen models read from a TOML recipe plus dotted overrides.

A recipe is checked without torch, so it can be written and tested anywhere::

    recipe = load_recipe("recipes/tiny-arithmetic.toml", ["optim.lr=1e-4", "env.kwargs.level=1"])
    recipe.optim.lr                  # 0.0001
    recipe.policy_of("verifier")     # "team"
    recipe.to_toml()                 # the resolved recipe, saved with the run

An unknown key fails with the nearest known one, a wrong value with what was expected, and both name the file (or the
override) and the key. The sentence under each field is also its line in ``docs/recipes.md``.
"""

from srpo_train.config.cluster import RayConfig
from srpo_train.config.engines import EngineConfig, ServedConfig, VllmConfig
from srpo_train.config.policies import (
    ALL_LINEAR,
    BUILTIN_TEAM,
    AdapterConfig,
    PolicyConfig,
    PolicyObjectiveConfig,
    PolicyOptimConfig,
    PolicySamplingConfig,
)
from srpo_train.config.reading import check_section, flatten, parse_override, read_toml
from srpo_train.config.recipe import Recipe, load_recipe, parse_recipe
from srpo_train.config.rollouts import RolloutConfig, SamplingConfig
from srpo_train.config.running import DistributedConfig, LogConfig, TrainConfig
from srpo_train.config.updates import CriticConfig, ObjectiveConfig, OptimConfig
from srpo_train.config.worlds import EnvConfig, EvalConfig

__all__ = [
    "ALL_LINEAR",
    "BUILTIN_TEAM",
    "AdapterConfig",
    "CriticConfig",
    "DistributedConfig",
    "EngineConfig",
    "EnvConfig",
    "EvalConfig",
    "LogConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "PolicyConfig",
    "PolicyObjectiveConfig",
    "PolicyOptimConfig",
    "PolicySamplingConfig",
    "RayConfig",
    "Recipe",
    "RolloutConfig",
    "SamplingConfig",
    "ServedConfig",
    "TrainConfig",
    "VllmConfig",
    "check_section",
    "flatten",
    "load_recipe",
    "parse_override",
    "parse_recipe",
    "read_toml",
]
