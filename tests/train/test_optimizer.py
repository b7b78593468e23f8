"""`srpo_train.optimizer`: float32 masters behind half-precision weights, schedules, skipped steps."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from srpo_envs.errors import NonFiniteError
from srpo_train.config import OptimConfig
from srpo_train.optimizer import PolicyOptimizer, StepGuard, schedule_factor

LR = 1e-3


def make_model(dtype: torch.dtype, value: float = 1.0) -> nn.Linear:
    model = nn.Linear(2, 1, bias=False).to(dtype)
    nn.init.constant_(model.weight, value)
    return model


def make_optimizer(model: nn.Module, **settings: float) -> PolicyOptimizer:
    return PolicyOptimizer(model.parameters(), OptimConfig(**({"lr": LR, "max_grad_norm": 100.0} | settings)))


def train(model: nn.Module, optimizer: PolicyOptimizer, num_steps: int, inputs: tuple[float, ...] = (1.0, 1.0)) -> None:
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.tensor([inputs], dtype=model.weight.dtype)).sum().backward()
        optimizer.step(LR)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_steps_smaller_than_the_formats_resolution_add_up(dtype: torch.dtype) -> None:
    # With a constant gradient every Adam step is lr = 1e-3, so ten of them lead from 1 to 0.99. The bfloat16 numbers
    # below 1 are 2^-8 = 0.0039 apart: each step alone rounds back to 1, their sum to 0.98828 or 0.99219.
    model = make_model(dtype)
    train(model, make_optimizer(model), num_steps=10)
    assert model.weight.dtype == dtype
    assert model.weight.tolist()[0] == pytest.approx([0.99, 0.99], abs=0.002)


def test_gradients_of_several_passes_are_summed_in_float32() -> None:
    # 256 + 1 has no bfloat16 (the neighbour of 256 is 258), so a bfloat16 sum would stay at 256: norm sqrt(2) * 256.
    # In float32 it is sqrt(2) * 257 = 363.4529.
    model = make_model(torch.bfloat16)
    optimizer = make_optimizer(model)
    for value in (256.0, 1.0):
        model(torch.full((1, 2), value, dtype=torch.bfloat16)).sum().backward()
    assert optimizer.clip() == pytest.approx(363.4529, rel=1e-6)
    assert model.weight.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_restored_optimizer_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    model = make_model(dtype)
    optimizer = make_optimizer(model)
    train(model, optimizer, num_steps=3)
    state = copy.deepcopy(optimizer.state_dict())
    resumed = copy.deepcopy(model)
    train(model, optimizer, num_steps=8)
    other = make_optimizer(resumed)
    other.load_state_dict(state)
    train(resumed, other, num_steps=8)
    assert torch.equal(resumed.weight, model.weight)
    assert all(map(torch.equal, other.state_dict()["masters"], optimizer.state_dict()["masters"]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_norm_before_clipping_is_returned_and_the_gradient_scaled_to_the_limit(dtype: torch.dtype) -> None:
    # The gradient is (3, 4), its norm 5; the second call sees the gradient scaled to norm 1.
    model = make_model(dtype)
    optimizer = make_optimizer(model, max_grad_norm=1.0)
    model(torch.tensor([[3.0, 4.0]], dtype=dtype)).sum().backward()
    assert optimizer.clip() == pytest.approx(5.0)
    assert optimizer.clip() == pytest.approx(1.0, rel=1e-4)


def test_without_a_gradient_the_norm_is_zero_and_nothing_moves() -> None:
    model = make_model(torch.bfloat16)
    optimizer = make_optimizer(model, weight_decay=0.1)
    assert optimizer.clip() == 0.0
    optimizer.step(LR)
    assert model.weight.tolist() == [[1.0, 1.0]]


def test_float32_weights_are_their_own_masters() -> None:
    assert make_optimizer(make_model(torch.float32)).state_dict()["masters"] == []


# --- schedules and skipped steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "step", "factor"),
    [
        ("constant", 0, 0.5),  # warm-up over two steps: 1/2, 1
        ("constant", 1, 1.0),
        ("constant", 9, 1.0),
        ("linear", 2, 1.0),
        ("linear", 6, 0.5),  # half of the eight steps after the warm-up
        ("cosine", 2, 1.0),
        ("cosine", 6, 0.5),
        ("cosine", 4, 0.853553),  # (1 + cos(pi / 4)) / 2
    ],
)
def test_learning_rate_schedules(schedule: str, step: int, factor: float) -> None:
    config = OptimConfig(schedule=schedule, warmup_steps=2)
    assert schedule_factor(config, step, num_steps=10) == pytest.approx(factor, abs=1e-6)


def test_a_guard_forgives_after_a_good_step_counts_all_and_remembers_where_it_stopped() -> None:
    guard = StepGuard("policies", max_in_a_row=1)
    assert guard.admits({"objective": 1.0, "gradient norm": 2.0})
    assert not guard.admits({"objective": 1.0, "gradient norm": math.inf})
    assert guard.admits({"objective": 1.0})
    assert not guard.admits({"objective": math.nan})
    other = StepGuard("policies", max_in_a_row=1)
    other.load_state_dict(guard.state_dict())
    assert other.num_skipped == 2
    with pytest.raises(NonFiniteError, match=r"2 optimiser steps in a row of the policies .*'objective': nan"):
        other.admits({"objective": math.nan})
