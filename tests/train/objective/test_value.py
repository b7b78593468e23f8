"""The critic's loss, to numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from srpo_train.objective import explained_variance, value_loss
from srpo_train.objective.value import share_clipped


@pytest.mark.parametrize(
    ("value", "loss", "slope"),
    [
        # Old value 0, target 1, clip 0.2.
        (0.1, 0.405, -0.9),  # inside: (0.1 - 1)^2 / 2
        (0.5, 0.32, 0.0),  # moved far towards the target: (0.2 - 1)^2 / 2 is the larger, and no longer depends on it
        (-0.5, 1.125, -1.5),  # moved away: (-0.5 - 1)^2 / 2 is the larger, and pulls it back
        (2.0, 0.5, 1.0),  # far beyond: (2 - 1)^2 / 2 against (0.2 - 1)^2 / 2
    ],
)
def test_the_larger_of_the_free_and_the_clipped_error_counts(value, loss, slope):
    value_E = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    result = value_loss(value_E, torch.zeros(1), torch.ones(1), value_clip=0.2)
    result.backward()
    assert result.item() == pytest.approx(loss)
    assert value_E.grad.item() == pytest.approx(slope)


def test_without_a_clip_it_is_half_the_mean_squared_error():
    value_E, target_E = torch.tensor([0.0, 3.0, 1.0]), torch.tensor([1.0, 1.0, 1.0])
    assert value_loss(value_E, torch.zeros(3), target_E, value_clip=math.inf).item() == pytest.approx((1 + 4) / 6)


def test_no_gradient_flows_into_targets_and_old_values():
    value_E, old_E, target_E = (torch.randn(4, requires_grad=True) for _ in range(3))
    value_loss(value_E, old_E, target_E, value_clip=0.2).backward()
    assert old_E.grad is None
    assert target_E.grad is None


def test_explained_variance_is_1_for_a_perfect_critic_and_0_for_a_constant():
    target_E = torch.tensor([0.0, 1.0, 2.0, 1.0])  # variance 0.5
    assert explained_variance(target_E, target_E) == 1.0
    assert explained_variance(target_E + 3.0, target_E) == 1.0  # a constant error has no variance
    assert explained_variance(torch.full((4,), 7.0), target_E) == 0.0
    assert explained_variance(-target_E, target_E) == pytest.approx(1 - 4 * 0.5 / 0.5)
    assert explained_variance(target_E, torch.ones(4)) == 0.0


def test_the_share_of_clipped_values_counts_moves_beyond_the_range():
    assert share_clipped(torch.tensor([0.1, -0.3, 0.5, 0.2]), torch.zeros(4), value_clip=0.25) == 0.5
