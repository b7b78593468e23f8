"""Numbers reported about an update."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from srpo_train.objective import Clip, LossTensors, Objective, diagnose, engine_mismatch, preset


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


def mismatched(differences, cardinalities) -> LossTensors:
    """Rows of one token for which trainer less engine is as given; the policy being updated is far from both."""
    tensors = make_tensors([5.0] * len(differences), cardinalities, [1.0] * len(cardinalities))
    old_MT = torch.full((len(differences), 1), -1.0, dtype=torch.float64)
    return replace(tensors, old_MT=old_MT, engine_MT=old_MT - torch.tensor(differences)[:, None].double())


def test_the_mismatch_of_engine_and_trainer_by_hand():
    # Event a has two members, differences 0.3 and 0.1: set difference 0.4 / sqrt 2 = 0.28284, ratio 1.327, outside.
    # Event b has one, -0.2: ratio 0.819, inside 1 -+ 0.2; event c, in another part: -0.25, ratio 0.779, outside.
    # Tokens: (0.3 + 0.1 + 0.2 + 0.25) / 4 = 0.2125. Events: (0.28284 + 0.2 + 0.25) / 3 = 0.244281. Outside: 2 of 3.
    parts = [mismatched([0.3, 0.1, -0.2], [2, 1]), mismatched([-0.25], [1])]
    report = engine_mismatch(Objective(), parts)
    assert report == {
        "engine_gap": pytest.approx(0.2125),
        "engine_gap_max": pytest.approx(0.3),
        "engine_event_gap": pytest.approx((0.4 / math.sqrt(2) + 0.45) / 3),
        "engine_clip_share": pytest.approx(2 / 3),
    }
    # The joint difference 0.4 of event a counts in full without scaling.
    joint = engine_mismatch(Objective(scaling="none"), parts)
    assert joint["engine_event_gap"] == pytest.approx(0.85 / 3)


def test_the_share_outside_the_clip_counts_units_with_bounds_of_their_own():
    part = mismatched([0.3, 0.1, -0.2], [2, 1])
    # As tokens: ratios 1.350, 1.105 and 0.819 against 1 -+ 0.2.
    assert engine_mismatch(preset("grpo"), [part])["engine_clip_share"] == pytest.approx(1 / 3)
    assert engine_mismatch(preset("magrpo"), [part])["engine_clip_share"] == 0.0  # linear: there is no clip
    # As sets: 1.327 and 0.819, where only the second event has a clip of 0.1.
    clip_E = Clip.stack([Clip(0.5, 1.5, math.inf), Clip(0.9, 1.1, math.inf)])
    assert engine_mismatch(Objective(), [replace(part, clip_E=clip_E)])["engine_clip_share"] == 0.5


@pytest.mark.parametrize(("level", "share"), [("token", 1 / 4), ("member", 3 / 4), ("event", 1.0)])
def test_the_share_of_weights_at_the_cap_by_hand(level, share):
    # A cap of 1.4 is reached from a log-weight of 0.336 on. Event a has members 0.3 + 0.1 and 0.2, event b has one of
    # 0.5; the second tokens of the last two rows were not sampled. Tokens: only the last of the four is at the cap.
    # Members 0.4, 0.2, 0.5: two tokens of the first, one of the last. Events 0.6 / sqrt 2 = 0.424 and 0.5: all.
    difference_MT = torch.tensor([[0.3, 0.1], [0.2, 9.0], [0.5, 9.0]]).double()
    old_MT = torch.full((3, 2), -1.0, dtype=torch.float64)
    part = replace(
        mismatched([0.0] * 3, [2, 1]),
        current_MT=old_MT,
        old_MT=old_MT,
        engine_MT=old_MT - difference_MT,
        token_mask_MT=torch.tensor([[True, True], [True, False], [True, False]]),
    )
    report = engine_mismatch(Objective(correction=level, correction_cap=1.4), [part])
    assert report["correction_cap_share"] == pytest.approx(share)
    assert "correction_cap_share" not in engine_mismatch(Objective(), [part])


def test_a_mismatch_that_is_not_a_number_shows_and_an_unknown_one_is_none():
    report = engine_mismatch(Objective(), [mismatched([math.nan, 0.0], [1, 1])])
    assert math.isnan(report["engine_gap"]) and math.isnan(report["engine_gap_max"])
    assert math.isnan(report["engine_event_gap"]) and report["engine_clip_share"] == 0.5
    unknown = replace(mismatched([1.0], [1]), engine_MT=None)
    assert set(engine_mismatch(Objective(), [unknown]).values()) == {0.0}


def test_the_mismatch_is_that_of_sampled_tokens_only():
    part = mismatched([0.3, 0.1], [1, 1])
    hidden = replace(part, token_mask_MT=torch.tensor([[True], [False]]))
    report = engine_mismatch(Objective(), [hidden])
    assert report["engine_gap"] == report["engine_gap_max"] == pytest.approx(0.3)
    assert report["engine_event_gap"] == pytest.approx(0.15)  # the second event has no sampled token and difference 0
