"""The engines of a team, as a recipe asks for them."""

from __future__ import annotations

from collections.abc import Iterable

from srpo_train.config import EngineConfig
from srpo_train.engines.base import Engine
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies.policy import Policy


def make_engines(policies: Iterable[Policy], config: EngineConfig) -> dict[str, Engine]:
    """Return an engine for each policy, by policy id, with the policies' weights in it.

    Raises:
        MissingExtraError: vLLM is asked for and not installed.
        EngineError: vLLM cannot be started.
    """
    if config.kind == "vllm":
        from srpo_train.engines.vllm import open_engines

        return dict(open_engines(policies, config.vllm))
    return {
        policy.policy_id: TransformersEngine(policy, max_batch_tokens=config.max_batch_tokens) for policy in policies
    }
