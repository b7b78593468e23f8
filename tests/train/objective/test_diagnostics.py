"""Numbers reported about an update."""

from __future__ import annotations

import math

import pytest
import torch

from srpo_train.objective import LossTensors, Objective, diagnose


def make_tensors(log_ratios, cardinalities, advantages) -> LossTensors:
    cardinality_E = torch.tensor(cardinalities)
    current_MT = torch.tensor(log_ratios)[:, None]
    return LossTensors(
        current_MT=current_MT,
        old_MT=torch.zeros_like(current_MT),
        token_mask_MT=torch.ones_like(current_MT, dtype=torch.bool),
        event_of_row_M=torch.arange(len(cardinalities)).repeat_interleave(cardinality_E),
        cardinality_E=cardinality_E,
        advantage_E=torch.tensor(advantages),
    )


def test_everything_is_neutral_at_the_behavior_policy():
    report = diagnose(Objective(), make_tensors([0.0, 0.0, 0.0], [2, 1], [1.0, -1.0]))
    assert report["clip_fraction"] == 0.0
    assert report["ratio_mean"] == report["ratio_min"] == report["ratio_max"] == report["effective_size"] == 1.0
    assert report["approx_kl"] == report["log_ratio_std"] == 0.0


def test_values_of_a_hand_made_batch():
    # Four single events with ratios 2, 1/4, 1, 1 and advantages 1, 1, 0, -1: only the first is held by a bound.
    # Mean (2 + .25 + 1 + 1) / 4 = 1.0625; effective size 4.25^2 / (4 + .0625 + 1 + 1) / 4 = 0.7448454;
    # k3 of KL(old || current), rho - 1 - log rho: (1 - .6931472) + (-.75 + 1.3862944) = 0.9431472, over 4 tokens
    two = math.log(2.0)
    report = diagnose(Objective(), make_tensors([two, -2 * two, 0.0, 0.0], [1] * 4, [1.0, 1.0, 0.0, -1.0]))
    assert report["clip_fraction"] == 0.25
    assert report["ratio_mean"] == pytest.approx(1.0625)
    assert (report["ratio_min"], report["ratio_max"]) == pytest.approx((0.25, 2.0))
    assert report["effective_size"] == pytest.approx(0.7448454)
    assert report["approx_kl"] == pytest.approx(0.2357868)
    assert report["num_zero_advantage_events"] == 1.0
    assert (report["num_events"], report["num_rows"], report["num_tokens"]) == (4.0, 4.0, 4.0)


def test_variance_is_reported_per_cardinality_with_its_covariance_part():
    # K = 2: members equal, +-0.1: L = +-0.2 / sqrt(2), variance 0.02, of which members explain 0.01.
    report = diagnose(Objective(), make_tensors([0.1, 0.1, -0.1, -0.1, 0.3], [2, 2, 1], [1.0, 1.0, 1.0]))
    assert report["var_set_log_ratio/K=2"] == pytest.approx(0.02)
    assert report["var_set_log_ratio_cov/K=2"] == pytest.approx(0.01)
    assert report["var_set_log_ratio/K=1"] == 0.0
    assert report["cardinality_mean"] == pytest.approx(5 / 3)


def test_an_objective_without_clip_reports_none():
    assert diagnose(Objective(form="linear"), make_tensors([3.0], [1], [1.0]))["clip_fraction"] == 0.0


def test_a_batch_of_empty_responses_has_finite_diagnostics():
    tensors = make_tensors([0.0], [1], [1.0])
    empty = LossTensors(
        current_MT=torch.zeros(1, 0),
        old_MT=torch.zeros(1, 0),
        token_mask_MT=torch.zeros(1, 0, dtype=torch.bool),
        event_of_row_M=tensors.event_of_row_M,
        cardinality_E=tensors.cardinality_E,
        advantage_E=tensors.advantage_E,
    )
    for unit in ("set", "token"):
        assert all(math.isfinite(value) for value in diagnose(Objective(unit=unit), empty).values())
