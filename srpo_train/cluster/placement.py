"""Which places a recipe needs on a cluster, and whether a cluster has them: all known before anything starts.

A *place* is what one process has to itself on one machine, as Ray counts it: a number of cores and of GPUs. Equal
places make a group, which Ray gives all together or not at all (a placement group)::

    groups = plan_groups(load_recipe("recipe.toml"))
    fit(groups, [Node(name="10.0.0.1", cpus=8, gpus=0)]).missing     # [] or what there is no room for
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from srpo_envs.errors import ConfigError
from srpo_train.config import Recipe

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK"]
Kind = Literal["rank", "environments", "engine"]

_DUST = 1e-9
"""Sums of fractions of a core are equal within this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Equal places that a cluster gives together."""

    kind: Kind
    """What runs there."""
    count: int
    """How many places."""
    cpus: float
    """Cores of each."""
    gpus: int
    """GPUs of each."""
    strategy: Strategy
    """How they lie to each other."""
    policy_ids: tuple[str, ...] = ()
    """Whose engines they are."""

    @property
    def name(self) -> str:
        """What the group is called in tables and errors, such as ``engine of solver``."""
        return self.kind if not self.policy_ids else f"{self.kind} of {', '.join(self.policy_ids)}"

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What Ray is asked for, one entry a place."""
        place = {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})
        return [dict(place) for _ in range(self.count)]

    def seat(self, index: int) -> str:
        """Return the name of one place."""
        return f"{self.name} {index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A machine of a cluster."""

    name: str
    """Its address."""
    cpus: float
    """Cores, as Ray counts them."""
    gpus: float
    """GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How groups would lie on a cluster with nothing else on it."""

    nodes: tuple[tuple[str, ...], ...]
    """Names of the machines of each group's places, as far as there is room; groups in their order."""
    missing: tuple[str, ...]
    """One line for each group without room for all of its places; empty when the cluster holds everything."""


@dataclass(slots=True)
class _Room:
    """What is left of a machine."""

    name: str
    cpus: float
    gpus: float
    num_places: int = field(default=0)

    def holds(self, group: Group, count: int = 1) -> bool:
        return self.cpus + _DUST >= count * group.cpus and self.gpus + _DUST >= count * group.gpus

    def take(self, group: Group) -> None:
        self.cpus -= group.cpus
        self.gpus -= group.gpus
        self.num_places += 1


def plan_groups(recipe: Recipe) -> tuple[Group, ...]:
    """Return the places of a run: its ranks, then its engines, then its environment workers.

    Raises:
        ConfigError: the recipe's engines cannot be run apart from the ranks.
    """
    ray = recipe.ray
    if recipe.engine.kind == "vllm":
        raise ConfigError(
            'engine.kind = "vllm" runs inside the trainer, where Ray Train has its process group; use "served" with '
            "ray.engines_per_policy servers"
        )
    if ray.engines_per_policy and recipe.engine.kind == "transformers" and recipe.rollout.mode == "asynchronous":
        raise ConfigError(
            'ray.engines_per_policy: copies with engine.kind = "transformers" sample whole batches; use rollout.mode = '
            '"rounds", or vLLM servers with engine.kind = "served"'
        )
    ranks = Group(
        kind="rank", count=ray.num_ranks, cpus=ray.cpus_per_rank, gpus=ray.gpus_per_rank, strategy=ray.strategy
    )
    engines = [
        Group(
            kind="engine",
            count=ray.engines_per_policy,
            cpus=ray.cpus_per_engine,
            gpus=ray.gpus_per_engine,
            strategy="PACK",
            policy_ids=policy_ids,
        )
        for policy_ids in (_engine_groups(recipe) if ray.engines_per_policy else ())
    ]
    environments = Group(
        kind="environments", count=ray.num_env_workers, cpus=ray.cpus_per_env_worker, gpus=0, strategy="SPREAD"
    )
    return (ranks, *engines, *([environments] if ray.num_env_workers else []))


def _engine_groups(recipe: Recipe) -> list[tuple[str, ...]]:
    """Policies by who shares their engines: with vLLM servers, those on one model of which one is an adapter."""
    shared: dict[tuple[str, str], list[str]] = {}
    for name, policy in recipe.policies.items():
        if policy.adapter or not policy.trainable:
            shared.setdefault((policy.model, policy.dtype), []).append(name)
    groups = []
    for name, policy in recipe.policies.items():
        beside = shared.get((policy.model, policy.dtype), [])
        if (
            recipe.engine.kind == "served"
            and name in beside
            and any(recipe.policies[other].adapter for other in beside)
        ):
            groups.append(tuple(beside))
        else:
            groups.append((name,))
    return list(dict.fromkeys(groups))


def fit(groups: Sequence[Group], nodes: Sequence[Node]) -> Fit:
    """Lay groups out on machines, those that need most first, each machine as full as it gets unless spread.

    Ray may lay them out otherwise. On machines of different sizes there are rare cases in which it finds room and this
    does not.
    """
    rooms = [_Room(node.name, node.cpus, node.gpus) for node in nodes]
    chosen: dict[int, tuple[str, ...]] = {}
    missing: dict[int, str] = {}
    for index in sorted(range(len(groups)), key=lambda index: (-groups[index].gpus, -groups[index].cpus)):
        group = groups[index]
        chosen[index] = _lay_out(group, rooms)
        if len(chosen[index]) < group.count:
            missing[index] = _explain(group, group.count - len(chosen[index]), rooms, nodes)
    in_order = range(len(groups))
    return Fit(
        nodes=tuple(chosen[index] for index in in_order),
        missing=tuple(missing[index] for index in in_order if index in missing),
    )


def _lay_out(group: Group, rooms: list[_Room]) -> tuple[str, ...]:
    found: list[str] = []
    if group.strategy == "STRICT_PACK":
        room = next((room for room in rooms if room.holds(group, group.count)), None)
        for _ in range(group.count if room else 0):
            assert room is not None
            room.take(group)
            found.append(room.name)
        return tuple(found)
    before = {room.name: room.num_places for room in rooms}
    for _ in range(group.count):
        fitting = [room for room in rooms if room.holds(group)]
        if not fitting:
            break
        if group.strategy == "SPREAD":
            room = min(fitting, key=lambda room: room.num_places - before[room.name])
        else:
            room = min(fitting, key=lambda room: (room.gpus, room.cpus))
        room.take(group)
        found.append(room.name)
    return tuple(found)


def _explain(group: Group, num_lacking: int, rooms: Sequence[_Room], nodes: Sequence[Node]) -> str:
    """Say which places there is no room for, what is left, and what would mend it."""
    size = _amount(group.cpus, group.gpus)
    left = "; ".join(f"{room.name} has {_amount(room.cpus, room.gpus)} left" for room in rooms) or "it has no machine"
    what = f"{group.name}: no room for {num_lacking} of {group.count} places of {size}"
    if group.strategy == "STRICT_PACK":
        what = f"{group.name}: no machine has room for all {group.count} places of {size} (STRICT_PACK)"
    if not any(_holds_alone(node, group) for node in nodes):
        return f"{what}; no machine of the cluster is as large as one place ({left})"
    return f"{what}; {_amount(num_lacking * group.cpus, num_lacking * group.gpus)} are missing ({left})"


def _holds_alone(node: Node, group: Group) -> bool:
    return node.cpus + _DUST >= group.cpus and node.gpus + _DUST >= group.gpus


def _amount(cpus: float, gpus: float) -> str:
    shown = f"{math.floor(cpus * 100 + 0.5) / 100:g} CPU"
    return f"{shown} and {gpus:g} GPU" if gpus else shown
