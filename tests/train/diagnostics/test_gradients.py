"""Whose gradient it is, against gradients taken apart by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from srpo_train.batching import EventBatch, MemberRow, micro_batches
from srpo_train.config import OptimConfig
from srpo_train.diagnostics.gradients import measure_role_gradients
from srpo_train.objective import preset
from srpo_train.optimizer import PolicyOptimizer
from srpo_train.policies.logprobs import TokenLogprobs
from srpo_train.set_gradient import accumulate_set_gradient, loss_coefficients, loss_tensors

SRPO = preset("srpo")


class Lookup:
    """A policy whose log-probability of token t is a weight of its own, so that gradients are read off directly."""

    def __init__(self, size: int = 8) -> None:
        self.weights = nn.Parameter(torch.zeros(size))

    def __call__(self, rows: list[MemberRow]) -> TokenLogprobs:
        return TokenLogprobs(torch.stack([self.weights[list(row.token_ids)] for row in rows]), None)


def row(event: int, member: int, role: str, tokens: list[int], policy_id: str = "p") -> MemberRow:
    return MemberRow(
        event_index=event, member_index=member, policy_id=policy_id, prompt_ids=[1], token_ids=tokens, role=role
    )


def measure(
    rows: list[MemberRow], cardinalities: list[int], advantages: list[float], *trained: str
) -> dict[str, float]:
    policies = {row.policy_id: Lookup() for row in rows}
    optimizers = {name: PolicyOptimizer([policies[name].weights], OptimConfig()) for name in trained}
    batch = EventBatch(
        rows=rows, cardinality_E=torch.tensor(cardinalities), advantage_E=torch.tensor(advantages, dtype=torch.float64)
    )
    _, coefficients = loss_coefficients(SRPO, loss_tensors(SRPO, batch, None))
    report = measure_role_gradients(batch, coefficients, policies, optimizers, max_tokens=100)
    assert all(policies[name].weights.grad is None for name in policies)
    return report


def test_norms_of_two_roles_by_hand() -> None:
    # Two events of one member: coefficient A / E = 1/2 a token. The solver's tokens 0 and 1 give (1/2, 1/2), the
    # judge's token 2 gives 1/2 with the other sign.
    report = measure([row(0, 0, "solver", [0, 1]), row(1, 0, "judge", [2, 2])], [1, 1], [1.0, -1.0], "p")
    assert report["role_grad_norm/solver"] == pytest.approx(math.sqrt(0.5))
    assert report["role_grad_norm/judge"] == pytest.approx(1.0)  # token 2 twice: 1/2 + 1/2
    assert report["role_grad_share/judge"] == pytest.approx(1 / (1 + math.sqrt(0.5)))


def test_members_that_write_the_same_amplify_by_sqrt_k() -> None:
    report = measure([row(0, k, "solver", [0, 1]) for k in range(4)], [4], [1.0], "p")
    assert report["member_grad_cosine/solver"] == pytest.approx(1.0)
    assert report["member_grad_amplification/solver"] == pytest.approx(2.0)


def test_members_that_share_nothing_do_not() -> None:
    report = measure([row(0, k, "solver", [2 * k, 2 * k + 1]) for k in range(3)], [3], [1.0], "p")
    assert report["member_grad_cosine/solver"] == pytest.approx(0.0)
    assert report["member_grad_amplification/solver"] == pytest.approx(1.0)


def test_members_of_other_policies_or_without_advantage_are_not_compared() -> None:
    split = [row(0, 0, "solver", [0], "p"), row(0, 1, "solver", [0], "q")]
    assert not any(name.startswith("member_") for name in measure(split, [2], [1.0], "p", "q"))
    alike = [row(0, k, "solver", [0]) for k in range(2)]
    assert not any(name.startswith("member_") for name in measure(alike, [2], [0.0], "p"))


def test_a_frozen_policy_has_no_gradient() -> None:
    report = measure([row(0, 0, "solver", [0], "p"), row(1, 0, "judge", [1], "q")], [1, 1], [1.0, 1.0], "p")
    assert report["role_grad_norm/judge"] == 0.0
    assert report["role_grad_share/solver"] == 1.0


def test_the_roles_parts_sum_to_the_whole_gradient() -> None:
    rows = [row(0, 0, "solver", [0, 1]), row(0, 1, "solver", [1, 2]), row(1, 0, "judge", [5, 6])]
    policy = Lookup()
    batch = EventBatch(rows=rows, cardinality_E=torch.tensor([2, 1]), advantage_E=torch.tensor([1.0, -2.0]).double())
    partition = micro_batches(rows, 100)
    accumulate_set_gradient(SRPO, batch, {"p": policy}, max_tokens=100, on_policy=True, partition=partition)
    assert policy.weights.grad is not None
    # Solver and judge share no token here, so the norm of the whole is the root of the sum of squares.
    report = measure(rows, [2, 1], [1.0, -2.0], "p")
    whole = math.hypot(report["role_grad_norm/solver"], report["role_grad_norm/judge"])
    assert float(policy.weights.grad.norm()) == pytest.approx(whole)
