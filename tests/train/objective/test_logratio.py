"""Equations 3 to 5."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.errors import IncompleteEventError, ShapeError
from srpo_train.objective import member_log_ratio, set_log_ratio, variance_split

CARDINALITIES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def events(cardinalities: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    cardinality_E = torch.tensor(cardinalities)
    return torch.arange(len(cardinalities)).repeat_interleave(cardinality_E), cardinality_E


def test_member_log_ratio_sums_the_masked_differences():
    current = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -0.5, -9.0]])
    old = torch.tensor([[-1.5, -2.25, -3.0], [-1.0, -0.25, -1.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    # row 0: 0.5 + 0.25 + 0 = 0.75; row 1: 0.5 - 0.25 = 0.25, its third token is not its own
    assert member_log_ratio(current, old, mask).tolist() == [0.75, 0.25]
    # the same sums over 3 and 2 sampled tokens
    assert member_log_ratio(current, old, mask, length_normalized=True).tolist() == [0.25, 0.125]


def test_environment_text_and_padding_do_not_move_the_ratio():
    """br-015: only sampled tokens count. What stands elsewhere, NaN included, changes neither value nor gradient."""
    current = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    old, mask = torch.tensor([[-1.5, -1.0, -3.5]]), torch.tensor([[1, 0, 1]])
    perturbed = torch.tensor([[-1.0, float("nan"), -3.0]], requires_grad=True)
    old_perturbed = torch.tensor([[-1.5, float("-inf"), -3.5]])
    for now, before in ((current, old), (perturbed, old_perturbed)):
        log_ratio = member_log_ratio(now, before, mask)
        log_ratio.sum().backward()
        assert log_ratio.item() == 1.0  # 0.5 + 0.5
        assert now.grad.tolist() == [[1.0, 0.0, 1.0]]


def test_bfloat16_log_probs_are_summed_in_float32():
    # 0.01 is 0.010009765625 in bfloat16; 512 of them are 5.125 exactly, which a bfloat16 sum would not reach
    current = torch.full((1, 512), 0.01, dtype=torch.bfloat16)
    total = member_log_ratio(current, torch.zeros_like(current), torch.ones(1, 512))
    assert total.dtype == torch.float32
    assert total.item() == 5.125


def test_an_empty_response_has_log_ratio_zero():
    """br-011: a zero-length response contributes nothing and leaves its neighbours alone."""
    current, old = torch.tensor([[-1.0, -1.0], [0.0, 0.0]]), torch.tensor([[-2.0, -1.5], [0.0, 0.0]])
    mask = torch.tensor([[1, 1], [0, 0]])
    for normalized, expected in ((False, [1.5, 0.0]), (True, [0.75, 0.0])):
        assert member_log_ratio(current, old, mask, length_normalized=normalized).tolist() == expected


def test_tensors_of_different_shape_are_refused():
    with pytest.raises(ShapeError, match=r"one shape, got \[\[1, 2\], \[1, 3\], \[1, 2\]\]"):
        member_log_ratio(torch.zeros(1, 2), torch.zeros(1, 3), torch.ones(1, 2))


@pytest.mark.parametrize(("scaling", "expected"), [("sqrt", [0.3, 0.9]), ("none", [0.6, 0.9]), ("mean", [0.15, 0.9])])
def test_set_log_ratio_divides_by_the_scaling_of_its_cardinality(scaling, expected):
    event_of_row, cardinality = events([4, 1])
    log_ratio = torch.tensor([0.1, 0.2, 0.1, 0.2, 0.9])  # sums 0.6 over K = 4 and 0.9 over K = 1
    assert set_log_ratio(log_ratio, event_of_row, cardinality, scaling=scaling).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("rows", "got"), [([0, 1, 1], 2), ([0, 1, 1, 1, 1], 4), ([0], 0)])
def test_a_lost_or_extra_row_raises_and_names_the_event(rows, got):
    with pytest.raises(IncompleteEventError, match=rf"event 'ep7/e3': expected 3 members .*got {got}"):
        set_log_ratio(torch.zeros(len(rows)), torch.tensor(rows), torch.tensor([1, 3]), event_ids=["ep7/e2", "ep7/e3"])


def test_a_row_of_an_unknown_event_raises():
    with pytest.raises(IncompleteEventError, match=r"indices in \[0, 1\)"):
        set_log_ratio(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([2]))


@given(cardinalities=CARDINALITIES, seed=st.integers(0, 2**16), scaling=st.sampled_from(["sqrt", "none", "mean"]))
@settings(max_examples=50, deadline=None)
def test_row_order_and_padding_change_nothing(cardinalities, seed, scaling):
    generator = torch.Generator().manual_seed(seed)
    event_of_row, cardinality = events(cardinalities)
    current, old = torch.randn((2, len(event_of_row), 5), generator=generator, dtype=torch.float64)
    mask = torch.rand((len(event_of_row), 5), generator=generator) < 0.7
    order = torch.randperm(len(event_of_row), generator=generator)

    def pad(tensor, fill):
        return torch.nn.functional.pad(tensor[order], (0, 3), value=fill)

    straight = set_log_ratio(member_log_ratio(current, old, mask), event_of_row, cardinality, scaling=scaling)
    shuffled_rows = member_log_ratio(pad(current, 7.0), pad(old, -7.0), pad(mask, False))
    shuffled = set_log_ratio(shuffled_rows, event_of_row[order], cardinality, scaling=scaling)
    torch.testing.assert_close(straight, shuffled, rtol=1e-12, atol=1e-12)


def test_independent_members_keep_their_variance_under_sqrt_scaling():
    # All four sign combinations of two members with values +-0.5: each has variance 0.25 and their covariance is 0.
    # Sums: 1, 0, 0, -1, variance 0.5; so Var(L) is 0.5 / 2 = 0.25 (sqrt), 0.5 (none), 0.5 / 4 = 0.125 (mean).
    event_of_row, cardinality = events([2, 2, 2, 2])
    log_ratio = 0.5 * torch.tensor([1.0, 1, 1, -1, -1, 1, -1, -1])
    for scaling, expected in (("sqrt", 0.25), ("none", 0.5), ("mean", 0.125)):
        (split,) = variance_split(log_ratio, event_of_row, cardinality, scaling=scaling)
        assert split.variance == pytest.approx(expected)
        assert split.member_variance == pytest.approx(expected)
        assert split.covariance_part == pytest.approx(0.0)


def test_equal_members_add_their_covariance():
    # Three members always equal, +-0.5: L = +-1.5 / sqrt(3), variance 0.75 = 0.25 + (2/3) * 3 pairs * 0.25 (eq. 5).
    # The event of one member, alone in its cardinality, has no variance.
    event_of_row, cardinality = events([3, 1, 3])
    log_ratio = torch.tensor([0.5, 0.5, 0.5, 9.0, -0.5, -0.5, -0.5])
    single, triple = variance_split(log_ratio, event_of_row, cardinality)
    assert (single.cardinality, single.num_events, single.variance) == (1, 1, 0.0)
    assert (triple.cardinality, triple.num_events) == (3, 2)
    assert triple.variance == pytest.approx(0.75)
    assert triple.member_variance == pytest.approx(0.25)
    assert triple.covariance_part == pytest.approx(0.5)


@given(st.integers(2, 4), st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_the_split_adds_up_to_the_variance_of_the_set_log_ratio(cardinality, seed):
    event_of_row, cardinality_E = events([cardinality] * 6)
    log_ratio = torch.randn(len(event_of_row), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (split,) = variance_split(log_ratio, event_of_row, cardinality_E)
    direct = set_log_ratio(log_ratio, event_of_row, cardinality_E).var(correction=0).item()
    assert math.isclose(split.variance, direct, rel_tol=1e-9)
    assert math.isclose(split.member_variance + split.covariance_part, direct, rel_tol=1e-9)
