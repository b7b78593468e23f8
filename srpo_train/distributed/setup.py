"""What of a recipe many processes can do, and its policies spread over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from srpo_envs.errors import ConfigError
from srpo_train.config import Recipe
from srpo_train.distributed.ranks import Ranks
from srpo_train.places import Places
from srpo_train.policies.loading import resolve_device, resolve_dtype
from srpo_train.policies.team import Team

if TYPE_CHECKING:
    from srpo_train.distributed.sharding import ShardedModel


def require_supported(recipe: Recipe, ranks: Ranks, places: Places) -> None:
    """Refuse what would go wrong later, or go on silently as something else.

    Raises:
        ConfigError: the engines or devices of the recipe cannot be those of several processes, or it is to be sharded
            and was not started by ``torchrun``.
    """
    if recipe.distributed.sharding != "none" and not dist.is_initialized():
        raise ConfigError(
            f'distributed.sharding = "{recipe.distributed.sharding}" needs processes to spread over; start it with '
            "torchrun --nproc-per-node N -m srpo_train.cli train RECIPE"
        )
    if recipe.engine.kind == "vllm" and dist.is_initialized():
        raise ConfigError(
            'engine.kind = "vllm" runs inside the trainer and would take its process group; under torchrun use '
            '"served", with vLLM servers on other GPUs, or "transformers"'
        )
    is_one_whole = ranks.size == 1 and recipe.distributed.sharding == "none"
    if recipe.rollout.max_lag and not places.is_sampling_elsewhere and not is_one_whole:
        raise ConfigError(
            f"rollout.max_lag = {recipe.rollout.max_lag}: several processes sample during updates on engines outside "
            'of them; use engine.kind = "served", or "srpo train --ray" with ray.engines_per_policy, or run without '
            "torchrun, or set max_lag = 0"
        )
    devices = {f"policies.{name}.device": policy.device for name, policy in recipe.policies.items()}
    if recipe.critic and recipe.critic.device:
        devices["critic.device"] = recipe.critic.device
    for key, device in devices.items():
        if ranks.size > 1 and ":" in device:
            raise ConfigError(f'{key}: {device!r} would be that of every process; use "auto", which gives each its own')


def shard_policies(team: Team, recipe: Recipe, ranks: Ranks) -> list[ShardedModel]:
    """Spread every trained policy over the ranks, where the recipe says so; frozen ones stay whole on each.

    Raises:
        ConfigError: a model cannot be.
    """
    if recipe.distributed.sharding == "none":
        return []
    from srpo_train.distributed.sharding import ShardedModel  # it imports much of torch that others do without

    for policy in team:
        config = recipe.policies[policy.policy_id]
        if policy.share and policy.is_trainable:
            raise ConfigError(
                f"policy {policy.policy_id!r}: {config.model!r} holds an adapter, whose base is not sharded; use "
                'distributed.sharding = "none"'
            )
        if policy.is_trainable:
            policy.shards = ShardedModel(
                policy.policy_id,
                policy.model,
                dtype=resolve_dtype(policy.policy_id, config.dtype),
                device=_own_device(policy.policy_id, config.device),
                ranks=ranks,
                settings=recipe.distributed,
            )
    return [policy.shards for policy in team if policy.shards]


def _own_device(policy_id: str, name: str) -> torch.device:
    device = resolve_device(policy_id, name)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
