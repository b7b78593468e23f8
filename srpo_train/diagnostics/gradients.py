"""Whose gradient it is: the norm each role contributes, and whether members of one role pull together.

Two ways in which teams fail start here. Under a *shared* policy a role that writes most, or acts most often, owns most
of the gradient and the policy becomes its own (role capture). Under an *isolated* policy, K members of a role that see
one prompt and get one reward push the same way, so that their sum is up to sqrt(K) times as long as that of K unrelated
gradients (amplification).

The measurement back-propagates rows again and leaves every gradient empty; no training step is changed by it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from srpo_train.batching import EventBatch, MemberRow, micro_batches
from srpo_train.diagnostics.roles import rows_by_role
from srpo_train.optimizer import PolicyOptimizer
from srpo_train.set_gradient import Coefficients, Partition, Scorer, backpropagate

_SAMPLED_EVENTS = 4
"""Events of several members of one role whose members' gradients are compared, for each role."""

_SKETCH_SIZE = 2**22
"""Coordinates of a gradient that are kept for comparing it with another: all of a small model's, of a large one evenly
spaced ones, for whose cosine they are an estimate."""


def measure_role_gradients(
    batch: EventBatch,
    coefficients: Coefficients,
    policies: Mapping[str, Scorer],
    optimizers: Mapping[str, PolicyOptimizer],
    *,
    max_tokens: int,
) -> dict[str, float]:
    """Measure the gradient of each role on one mini-batch.

    Args:
        batch: The mini-batch.
        coefficients: Its `set_gradient.loss_coefficients`.
        policies: Scorers, by policy id.
        optimizers: Where the gradients arrive, by policy id; a policy without one is frozen.
        max_tokens: Padded tokens per forward pass.

    Returns:
        ``role_grad_norm/{role}``: norm of the part of the gradient that comes from the role's rows, over all policies.
        ``role_grad_share/{role}``: the same over the sum of all roles' norms.
        For roles with several members in an event, means over a few such events:
        ``member_grad_cosine/{role}``: cosine between the gradients of two members.
        ``member_grad_amplification/{role}``: norm of the members' sum over that of as many unrelated ones,
        ``|sum g_j| / sqrt(sum |g_j|^2)``: 1 when they are unrelated, sqrt(K) when they are equal.
    """
    probe = _Probe(batch.rows, coefficients, policies, optimizers)
    norms = {
        role: probe.norm(_partition(batch.rows, indices, max_tokens))
        for role, indices in rows_by_role(batch.rows).items()
    }
    total = sum(norms.values())
    report = {f"role_grad_norm/{role}": norm for role, norm in norms.items()}
    report |= {f"role_grad_share/{role}": norm / total for role, norm in norms.items() if total}
    for role, events in _events_of_several(batch.rows, probe.moves).items():
        report |= _agreement(role, [probe.sketches(rows) for rows in events[:_SAMPLED_EVENTS]])
    return report


class _Probe:
    """Back-propagates chosen rows and reads what arrives."""

    def __init__(
        self,
        rows: Sequence[MemberRow],
        coefficients: Coefficients,
        policies: Mapping[str, Scorer],
        optimizers: Mapping[str, PolicyOptimizer],
    ) -> None:
        self._rows = rows
        self._coefficients = coefficients
        self._policies = policies
        self._optimizers = optimizers
        self._frozen: Collection[str] = policies.keys() - optimizers.keys()

    def moves(self, index: int) -> bool:
        """Whether a row has any gradient."""
        is_trained = self._rows[index].policy_id in self._optimizers
        return is_trained and bool((self._coefficients.logprobs_MT[index] != 0).any())

    def norm(self, partition: Partition) -> float:
        """Return the norm of the gradient of the partition's rows."""
        return math.sqrt(sum(float(part.double().square().sum()) for part in self._gradients(partition)))

    def sketches(self, rows: Sequence[int]) -> Tensor:
        """Return [N, D]: the gradient of each row alone, thinned out alike for all."""
        return torch.stack([_sketch(self._gradients([[row]])) for row in rows])

    def _gradients(self, partition: Partition) -> list[Tensor]:
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        backpropagate(self._rows, self._policies, self._coefficients, partition, self._frozen)
        found = [part for optimizer in self._optimizers.values() for part in optimizer.gradients()]
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        return found


def _partition(rows: Sequence[MemberRow], indices: Sequence[int], max_tokens: int) -> Partition:
    parts = micro_batches([rows[index] for index in indices], max_tokens)
    return [[indices[position] for position in part] for part in parts]


def _events_of_several(rows: Sequence[MemberRow], moves: Callable[[int], bool]) -> dict[str, list[list[int]]]:
    """Row indices of the members of each event, by role and policy, where several of them have a gradient."""
    members: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.role and moves(index):
            members[row.role, row.policy_id, row.event_index].append(index)
    found: dict[str, list[list[int]]] = defaultdict(list)
    for (role, _, _), indices in sorted(members.items()):
        if len(indices) > 1:
            found[role].append(indices)
    return found


def _agreement(role: str, events: Sequence[Tensor]) -> dict[str, float]:
    cosines = [cosine for sketches in events for cosine in _cosines(sketches)]
    factors = [
        float(sketches.sum(dim=0).norm() / sketches.square().sum().sqrt()) for sketches in events if sketches.any()
    ]
    if not cosines or not factors:
        return {}
    return {
        f"member_grad_cosine/{role}": sum(cosines) / len(cosines),
        f"member_grad_amplification/{role}": sum(factors) / len(factors),
    }


def _cosines(sketches: Tensor) -> list[float]:
    pairs = itertools.combinations(sketches, 2)
    return [float(torch.nn.functional.cosine_similarity(one, other, dim=0)) for one, other in pairs]


def _sketch(gradient: Sequence[Tensor]) -> Tensor:
    """Return [D] float32 on the CPU: evenly spaced coordinates of a gradient, all of them when there are few."""
    stride = max(1, math.ceil(sum(part.numel() for part in gradient) / _SKETCH_SIZE))
    return torch.cat([part.flatten()[::stride].float().cpu() for part in gradient]) if gradient else torch.zeros(1)
