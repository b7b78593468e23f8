"""Several real processes that meet over gloo, and teams and batches for them to train."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from srpo_train.batching import EventBatch, MemberRow
from srpo_train.config import AdapterConfig, DistributedConfig, OptimConfig
from srpo_train.distributed.ranks import Ranks
from srpo_train.learner import Learner
from srpo_train.objective import preset
from srpo_train.policies import Policy
from srpo_train.policies.shared_base import Bases

TINY = "builtin:tiny-team"
TIMEOUT_S = 120.0


def run_ranks(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function of a module with (ranks, *arguments) on every rank; return what it returns, by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    _forkserver()
    mp.start_processes(
        _rank, (size, str(folder), function, arguments), nprocs=size, start_method="forkserver", join=True
    )
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(size)]


@functools.cache
def _forkserver() -> None:
    """Let torch and transformers be imported once for all processes."""
    preload = ["rank_world", "srpo_train.loop", "srpo_train.distributed.sharding", "transformers.models.qwen3", "peft"]
    mp.get_context("forkserver").set_forkserver_preload(preload)


def _rank(rank: int, size: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S))
    torch.save(function(Ranks(rank, size), *arguments), f"{folder}/rank-{rank}.pt")
    dist.destroy_process_group()


# --- what is trained ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A team, a batch and an objective."""

    team: str = "shared"
    cardinalities: tuple[int, ...] = (3, 1, 2, 1, 4)
    preset: str = "srpo"
    extras: dict[str, Any] = field(default_factory=dict)
    optim: dict[str, Any] = field(default_factory=dict)
    sharding: str = "none"
    dtype: str = "float64"
    seed: int = 0


def build_team(kind: str, dtype: str = "float64") -> dict[str, Policy]:
    """``shared``: one policy. ``several``: two and a frozen one. ``adapters``: the same on one base."""
    if kind == "adapters":
        bases, adapter = Bases(), AdapterConfig(rank=4, alpha=8.0)
        team = {name: Policy.load(name, TINY, adapter=adapter, device="cpu", bases=bases) for name in ("a", "b")}
        team["frozen"] = Policy.load("frozen", TINY, trainable=False, device="cpu", bases=bases)
    elif kind == "several":
        team = {name: Policy.load(name, TINY, device="cpu") for name in ("a", "b")}
        team["frozen"] = Policy.load("frozen", TINY, trainable=False, device="cpu")
    else:
        team = {"a": Policy.load("a", TINY, device="cpu")}
    for policy in team.values():
        policy.model.to(getattr(torch, dtype))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # away from the adapters' zero, and policies away from each other
        for policy in team.values():
            for parameter in policy.trainable_parameters:
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return team


def make_batch(case: Case, policy_ids: list[str]) -> EventBatch:
    """Events of unequal length whose members belong to different policies, some of them to none of a rank's."""
    rng = random.Random(case.seed)
    rows = []
    for event, cardinality in enumerate(case.cardinalities):
        for member in range(cardinality):
            response = [rng.randrange(5, 40) for _ in range(rng.randrange(1, 7))]
            rows.append(
                MemberRow(
                    event_index=event,
                    member_index=member,
                    policy_id=rng.choice(policy_ids),
                    prompt_ids=[rng.randrange(5, 40) for _ in range(rng.randrange(1, 12))],
                    token_ids=response,
                    old_logprobs=[-rng.random() for _ in response],
                    role=rng.choice(("solver", "verifier")),
                )
            )
    rng.shuffle(rows)
    return EventBatch(
        rows=rows,
        cardinality_E=torch.tensor(case.cardinalities),
        advantage_E=torch.tensor([rng.uniform(-1.5, 1.5) for _ in case.cardinalities]),
        event_ids=[f"e{event}" for event in range(len(case.cardinalities))],
    )


def make_learner(case: Case, ranks: Ranks) -> tuple[Learner, dict[str, Policy]]:
    team = build_team(case.team, case.dtype)
    objective = preset(case.preset, **case.extras)
    if case.sharding == "fsdp":
        shard(team, ranks)
    # With a large eps a step is in proportion to the gradient, and weights are as near as gradients are.
    optim = {"lr": 0.5, "eps": 1.0, "num_epochs": 2, "num_minibatches": 2, "micro_batch_tokens": 40} | case.optim
    learner = Learner(
        team,
        objective,
        OptimConfig(**optim),
        num_steps=4,
        references=build_team(case.team, case.dtype) if objective.kl_coef else None,
        ranks=ranks,
    )
    return learner, team


def shard(team: dict[str, Policy], ranks: Ranks, dtype: torch.dtype = torch.float32) -> None:
    from srpo_train.distributed.sharding import ShardedModel

    for policy in team.values():
        if policy.is_trainable:
            policy.shards = ShardedModel(
                policy.policy_id,
                policy.model,
                dtype=dtype,
                device=torch.device("cpu"),
                ranks=ranks,
                settings=DistributedConfig(sharding="fsdp"),
            )


def train_case(ranks: Ranks, case: Case) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Two updates; metrics of the last, and the trained weights of each policy."""
    learner, team = make_learner(case, ranks)
    batch = make_batch(case, sorted(team))
    for step in range(2):
        metrics = learner.update(batch, step=step, seed=step)
    return metrics, {name: whole_weights(policy) for name, policy in team.items() if policy.is_trainable}


def train_cases(ranks: Ranks, cases: list[Case]) -> list[Any]:
    return [train_case(ranks, case) for case in cases]


def whole_weights(policy: Policy) -> torch.Tensor:
    tensors = (parameter.detach() for parameter in policy.trainable_parameters)
    return torch.cat([(t.full_tensor() if hasattr(t, "full_tensor") else t).flatten() for t in tensors]).double()
