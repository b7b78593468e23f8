"""The engines of a team, as a recipe asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from srpo_train.config import EngineConfig, ServedConfig
from srpo_train.engines.base import Engine
from srpo_train.engines.publishing import weights_of
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies.policy import Policy

if TYPE_CHECKING:
    from srpo_train.engines.served import ServedEngine


def make_engines(policies: Iterable[Policy], config: EngineConfig) -> dict[str, Engine]:
    """Return an engine for each policy, by policy id, with the policies' weights in it.

    Raises:
        MissingExtraError: vLLM or httpx is asked for and not installed.
        ConfigError: servers cannot take a policy's weights.
        EngineError: vLLM cannot be started, or servers do not take the weights.
    """
    if config.served:
        return dict(_ask_servers(policies, config.served))
    if config.kind == "vllm":
        from srpo_train.engines.vllm import open_engines

        return dict(open_engines(policies, config.vllm))
    return {
        policy.policy_id: TransformersEngine(policy, max_batch_tokens=config.max_batch_tokens) for policy in policies
    }


def _ask_servers(policies: Iterable[Policy], config: ServedConfig) -> dict[str, ServedEngine]:
    from srpo_train.engines.served import ServedEngine

    policies = list(policies)
    config.check_neighbours({policy.policy_id: policy.share and policy.share.base for policy in policies})
    settings = config.model_dump(exclude={"servers", "weights_dir", "api_key_env"})
    engines: dict[str, ServedEngine] = {}
    try:
        for policy in policies:
            engine = ServedEngine(
                policy,
                config.servers[policy.policy_id],
                beside_adapters=bool(config.neighbours(policy.policy_id)),
                weights_dir=config.weights_dir or None,
                api_key=os.environ.get(config.api_key_env, ""),
                **settings,
            )
            engines[policy.policy_id] = engine
            engine.publish(policy.version, weights_of(policy))
    except BaseException:
        for engine in engines.values():
            engine.close()
        raise
    return engines
