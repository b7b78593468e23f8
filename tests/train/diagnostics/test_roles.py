"""An update's numbers by role."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from srpo_train.batching import EventBatch, MemberRow
from srpo_train.diagnostics.roles import describe_batch, describe_ratios, rows_by_role
from srpo_train.objective import preset
from srpo_train.policies.logprobs import TokenLogprobs
from srpo_train.set_gradient import loss_tensors


def row(event: int, member: int, role: str, logprobs: list[float], mask: list[bool] | None = None) -> MemberRow:
    return MemberRow(
        event_index=event,
        member_index=member,
        policy_id="p",
        prompt_ids=[1],
        token_ids=[5] * len(logprobs),
        old_logprobs=logprobs,
        token_mask=mask,
        role=role,
    )


def make_batch() -> EventBatch:
    rows = [
        row(0, 0, "solver", [-1.0, -2.0]),
        row(0, 1, "solver", [-3.0, -9.0], [True, False]),
        row(1, 0, "judge", [-0.5]),
    ]
    return EventBatch(rows=rows, cardinality_E=torch.tensor([2, 1]), advantage_E=torch.tensor([1.0, -1.0]))


def test_tokens_entropy_and_advantage_by_role() -> None:
    report = describe_batch(make_batch())
    # Solvers sampled three tokens of log-probabilities -1, -2, -3 (the -9 is the environment's), the judge one.
    assert report["token_share/solver"] == 0.75
    assert report["entropy/solver"] == pytest.approx(2.0)
    assert report["perplexity/solver"] == pytest.approx(math.exp(2.0))
    assert report["perplexity/judge"] == pytest.approx(math.exp(0.5))
    assert report["advantage_std/solver"] == 0.0


def test_advantages_of_rows_are_used_where_rows_have_their_own() -> None:
    batch = replace(make_batch(), advantage_M=torch.tensor([3.0, 1.0, 0.0]))
    assert describe_batch(batch)["advantage_std/solver"] == pytest.approx(1.0)  # 3 and 1: population deviation 1


def test_ratios_by_role() -> None:
    batch = make_batch()
    moved = torch.tensor([[-0.5, -2.0], [-3.0, 0.0], [-0.5, 0.0]], dtype=torch.float64)
    report = describe_ratios(batch, loss_tensors(preset("srpo"), batch, TokenLogprobs(moved, None)))
    # The first solver's response is e^0.5 likelier, the second's unchanged (the hidden token does not count).
    assert report["ratio_mean/solver"] == pytest.approx((math.exp(0.5) + 1) / 2)
    assert report["log_ratio_std/solver"] == pytest.approx(0.25)
    assert report["ratio_mean/judge"] == 1.0


def test_rows_without_a_role_are_left_out() -> None:
    assert rows_by_role([row(0, 0, "", [-1.0]), row(0, 1, "b", [-1.0]), row(1, 0, "a", [-1.0])]) == {"a": [2], "b": [1]}
