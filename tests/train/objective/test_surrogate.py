"""Equation 7, its reductions and its extra terms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.errors import ConfigError, IncompleteEventError
from srpo_train.objective import (
    PRESETS,
    Clip,
    LossTensors,
    Objective,
    Totals,
    correction_weight,
    divergence,
    objective_value,
    preset,
    surrogate,
)
from srpo_train.objective.diagnostics import diagnose
from srpo_train.objective.logratio import scaling_divisor
from srpo_train.objective.surrogate import is_clipped, member_coefficient, units

ALL_PRESETS = sorted(PRESETS)


def make_tensors(cardinalities=(2, 1, 3), num_tokens=4, seed=0, spread=0.1, dtype=torch.float64) -> LossTensors:
    """Random events; rows have 0 to ``num_tokens`` sampled tokens."""
    generator = torch.Generator().manual_seed(seed)
    cardinality_E = torch.tensor(cardinalities)
    event_of_row_M = torch.arange(len(cardinalities)).repeat_interleave(cardinality_E)
    shape = (len(event_of_row_M), num_tokens)
    lengths = torch.randint(0, num_tokens + 1, (shape[0], 1), generator=generator)
    old_MT = -torch.rand(shape, generator=generator, dtype=dtype)
    return LossTensors(
        current_MT=old_MT + spread * torch.randn(shape, generator=generator, dtype=dtype),
        old_MT=old_MT,
        token_mask_MT=torch.arange(num_tokens) < lengths,
        event_of_row_M=event_of_row_M,
        cardinality_E=cardinality_E,
        advantage_E=torch.randn(len(cardinalities), generator=generator, dtype=dtype),
        reference_MT=old_MT + 0.05,
        entropy_MT=torch.rand(shape, generator=generator, dtype=dtype),
    )


def one_token_rows(log_ratios, cardinalities, advantages) -> LossTensors:
    """Rows of one sampled token each, with the given member log-ratios."""
    cardinality_E = torch.tensor(cardinalities)
    current_MT = torch.tensor(log_ratios, dtype=torch.float64)[:, None]
    return LossTensors(
        current_MT=current_MT.requires_grad_(),
        old_MT=torch.zeros_like(current_MT),
        token_mask_MT=torch.ones_like(current_MT, dtype=torch.bool),
        event_of_row_M=torch.arange(len(cardinalities)).repeat_interleave(cardinality_E),
        cardinality_E=cardinality_E,
        advantage_E=torch.tensor(advantages, dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.5, 1.0, 1.2, 0.0),  # min(1.5, 1.2)
        (1.5, -1.0, -1.5, -1.5),  # min(-1.5, -1.2): a bad action that became likelier is not clipped
        (0.5, 1.0, 0.5, 0.5),  # min(0.5, 0.8)
        (0.5, -1.0, -0.8, 0.0),  # min(-0.5, -0.8)
        (1.1, 2.0, 2.2, 2.2),  # inside the range
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_surrogate_is_the_smaller_of_the_free_and_the_clipped_product(ratio, advantage, value, slope):
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    result = surrogate(log_ratio, torch.tensor([advantage]), Objective())
    result.sum().backward()
    assert result.item() == pytest.approx(value)
    assert log_ratio.grad.item() == pytest.approx(slope)  # d(rho A)/d(log rho) = rho A where no bound holds
    assert is_clipped(log_ratio, torch.tensor([advantage]), Objective()).item() == (slope == 0.0 and advantage != 0.0)


def test_clip_low_and_clip_high_are_independent():
    objective = Objective(clip_low=0.1, clip_high=0.3)
    log_ratio = torch.tensor([1.5, 0.5], dtype=torch.float64).log()
    assert surrogate(log_ratio, torch.tensor([1.0, -1.0]), objective).tolist() == pytest.approx([1.3, -0.9])


def test_dual_clip_bounds_the_loss_of_a_bad_action_that_became_likely():
    log_ratio = torch.tensor([5.0, 5.0, 2.0], dtype=torch.float64).log()
    advantage = torch.tensor([-1.0, 1.0, -1.0])
    assert surrogate(log_ratio, advantage, Objective(dual_clip=3.0)).tolist() == pytest.approx([-3.0, 1.2, -2.0])


@pytest.mark.parametrize("unit", ["set", "sequence", "token"])
def test_each_event_may_have_bounds_of_its_own(unit):
    # Events of 1, 1, 2 and 1 members with ratios 1.5, 1.5, 0.5 and 9. Where all members of an event agree, each one's
    # ratio is the set's under the mean scaling. The mean over events: (1.1 + 1.4 - 2 * 0.7 / 2 - 3) / 4.
    tensors = one_token_rows([math.log(r) for r in (1.5, 1.5, 0.5, 0.5, 9.0)], [1, 1, 2, 1], [1.0, 1.0, -1.0, -1.0])
    clips = [Clip(0.9, 1.1, 5.0), Clip(0.9, 1.4, 5.0), Clip(0.7, 1.1, 5.0), Clip(0.9, 1.1, 3.0)]
    objective = Objective(unit=unit, scaling="mean")
    tensors = replace(tensors, clip_E=Clip.stack(clips))
    assert objective_value(objective, tensors).item() == pytest.approx((1.1 + 1.4 - 0.7 - 3.0) / 4)
    assert diagnose(objective, tensors)["clip_fraction"] == 1.0
    wide = replace(tensors, clip_E=Clip.stack([Clip(0.1, 2.0, math.inf)] * 4))
    assert diagnose(objective, wide)["clip_fraction"] == 0.0


@pytest.mark.parametrize("unit", ["set", "sequence", "token"])
def test_equal_bounds_of_all_events_are_those_of_the_objective(unit):
    objective = Objective(unit=unit, clip_low=0.05, clip_high=0.1, dual_clip=3.0)
    tensors = make_tensors(spread=1.0)
    own = replace(tensors, clip_E=Clip.stack([Clip.of(objective)] * 3))
    assert torch.equal(objective_value(Objective(unit=unit), own), objective_value(objective, tensors))
    assert objective_value(objective, tensors) != objective_value(Objective(unit=unit), tensors)


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, 1.2), (-1.0, -math.exp(20.0))])
def test_a_huge_ratio_stays_finite_and_its_gradient_is_zero(advantage, expected):
    log_ratio = torch.tensor([200.0], requires_grad=True)
    value = surrogate(log_ratio, torch.tensor([advantage]), Objective())
    value.sum().backward()
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert log_ratio.grad.item() == 0.0


def test_clip_binds_once_per_event():
    # Members moved by +0.5 and -0.5, each far outside 0.2, yet the set has not moved: ratio 1, nothing is clipped.
    tensors = one_token_rows([0.5, -0.5], [2], [1.0])
    value = objective_value(Objective(), tensors)
    value.backward()
    assert value.item() == pytest.approx(1.0)
    assert tensors.current_MT.grad.flatten().tolist() == pytest.approx([1 / math.sqrt(2)] * 2)
    # The per-row objective clips the first member: mean of min(e^.5, 1.2) and e^-.5 = (1.2 + 0.6065307) / 2
    per_row = objective_value(Objective(unit="sequence", reduction="row"), tensors)
    assert per_row.item() == pytest.approx(0.9032653)


def test_at_the_behavior_policy_ratios_are_one_and_the_gradient_is_the_advantage_over_root_k():
    tensors = one_token_rows([0.0] * 4, [3, 1], [2.0, -1.0])
    value = objective_value(Objective(), tensors)
    value.backward()
    assert value.item() == 0.5  # (2 - 1) / 2
    # 2 / sqrt(3) / 2 events = 0.5773503 for each of three members, -1 / 2 for the single one
    assert tensors.current_MT.grad.flatten().tolist() == pytest.approx([0.5773503] * 3 + [-0.5])


def test_zero_advantage_events_stay_in_the_denominator():
    alone = objective_value(Objective(), one_token_rows([0.1], [1], [1.0]))
    beside = objective_value(Objective(), one_token_rows([0.1, 0.0, 0.0], [1, 1, 1], [1.0, 0.0, 0.0]))
    assert beside.item() == pytest.approx(alone.item() / 3)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-3, 3)), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_single_member_events_are_sequence_level_ppo(samples):
    log_ratios, advantages = [sample[0] for sample in samples], [sample[1] for sample in samples]
    tensors = one_token_rows(log_ratios, [1] * len(samples), advantages)
    ratio, advantage = torch.tensor(log_ratios).double().exp(), torch.tensor(advantages).double()
    ppo = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean().item()
    for scaling in ("sqrt", "none", "mean"):
        assert objective_value(Objective(scaling=scaling), tensors).item() == pytest.approx(ppo, rel=1e-6, abs=1e-7)


def test_reductions_count_events_rows_or_tokens():
    # Event 0: rows of 2 and 1 tokens, advantage 3; event 1: one row of 1 token, advantage -1; everything at ratio 1.
    tensors = LossTensors(
        current_MT=torch.zeros(3, 2),
        old_MT=torch.zeros(3, 2),
        token_mask_MT=torch.tensor([[1, 1], [1, 0], [1, 0]]),
        event_of_row_M=torch.tensor([0, 0, 1]),
        cardinality_E=torch.tensor([2, 1]),
        advantage_E=torch.tensor([3.0, -1.0]),
    )
    # events: (3 - 1) / 2; rows: (3 + 3 - 1) / 3; tokens: (3 * 3 - 1) / 4 -- whichever unit carries the ratio
    for unit in ("set", "sequence", "token"):
        for reduction, expected in (("event", 1.0), ("row", 5 / 3), ("token", 2.0)):
            objective = Objective(unit=unit, reduction=reduction)
            assert objective_value(objective, tensors).item() == pytest.approx(expected)
            assert units(objective, tensors).weight.sum().item() == pytest.approx(1.0)


def test_parts_of_a_mini_batch_add_up_when_they_divide_by_its_totals():
    whole = make_tensors((2, 1, 3, 1))
    totals = Totals(4, 7, int(whole.token_mask_MT.sum()))
    for objective in (Objective(), Objective(unit="token", reduction="token"), Objective(reduction="row")):
        parts = [(slice(0, 3), slice(0, 2)), (slice(3, 7), slice(2, 4))]
        total = sum(objective_value(objective, take(whole, rows, events), totals).item() for rows, events in parts)
        assert total == pytest.approx(objective_value(objective, whole).item())


def take(whole: LossTensors, rows: slice, events: slice) -> LossTensors:
    return LossTensors(
        current_MT=whole.current_MT[rows],
        old_MT=whole.old_MT[rows],
        token_mask_MT=whole.token_mask_MT[rows],
        event_of_row_M=whole.event_of_row_M[rows] - events.start,
        cardinality_E=whole.cardinality_E[events],
        advantage_E=whole.advantage_E[events],
    )


@pytest.mark.parametrize("name", ALL_PRESETS)
@pytest.mark.parametrize("extras", [{}, {"kl_coef": 0.1, "entropy_coef": 0.01}])
def test_gradcheck(name, extras):
    # The seed keeps every unit away from the corners of the clip range, where finite differences have no meaning.
    tensors = make_tensors(spread=0.03, seed=3)

    def value(current_MT, entropy_MT):
        return objective_value(preset(name, **extras), replace(tensors, current_MT=current_MT, entropy_MT=entropy_MT))

    leaves = tensors.current_MT.clone().requires_grad_(), tensors.entropy_MT.clone().requires_grad_()
    assert torch.autograd.gradcheck(value, leaves)


@given(st.sampled_from(ALL_PRESETS), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_row_order_and_padding_change_nothing(name, seed):
    objective = preset(name, kl_coef=0.1, entropy_coef=0.01)
    tensors = make_tensors((2, 1, 3), seed=seed, spread=0.3)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    matrices = {
        key: torch.nn.functional.pad(getattr(tensors, key)[order], (0, 2), value=fill)
        for key, fill in (
            ("current_MT", math.nan),
            ("old_MT", math.inf),
            ("token_mask_MT", False),
            ("reference_MT", 1.0),
            ("entropy_MT", math.nan),
        )
    }
    shuffled = replace(tensors, event_of_row_M=tensors.event_of_row_M[order], **matrices)
    expected = objective_value(objective, tensors).item()
    assert objective_value(objective, shuffled).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ALL_PRESETS)
def test_a_missing_member_raises_whatever_the_unit(name):
    tensors = replace(make_tensors((2, 1, 3)), cardinality_E=torch.tensor([2, 1, 4]), event_ids=["a", "b", "c"])
    with pytest.raises(IncompleteEventError, match="event 'c': expected 4 members"):
        objective_value(PRESETS[name], tensors)


def test_an_empty_member_leaves_the_others_as_they_are():
    """br-011: the empty member counts in K, adds nothing to the log-ratio, and no other row's gradient changes."""
    tensors = one_token_rows([0.1, 7.0], [2], [1.0])
    tensors = replace(tensors, token_mask_MT=torch.tensor([[True], [False]]))
    value = objective_value(Objective(), tensors)
    value.backward()
    ratio = math.exp(0.1 / math.sqrt(2))
    assert value.item() == pytest.approx(ratio)
    assert tensors.current_MT.grad.flatten().tolist() == pytest.approx([ratio / math.sqrt(2), 0.0])


@pytest.mark.parametrize("scaling", ["sqrt", "none", "mean"])
@pytest.mark.parametrize("form", ["clipped", "linear"])
@pytest.mark.parametrize("dual_clip", [1.4, None])
def test_closed_form_coefficient_is_the_derivative(scaling, form, dual_clip):
    objective = Objective(scaling=scaling, form=form, dual_clip=dual_clip)
    # Ratios inside, above and below the range for both signs, a dual-clipped one, and one beyond exp's range
    log_ratios = [0.1, 0.05, 0.4, 0.3, -0.5, -0.2, 0.1, 0.1, 0.5, 0.4, -0.4, -0.2, 90.0, 90.0]
    tensors = one_token_rows(log_ratios, [2] * 7, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0])
    objective_value(objective, tensors).backward()
    closed_E = member_coefficient(
        units(objective, tensors).log_ratio.detach(),
        tensors.advantage_E,
        scaling_divisor(tensors.cardinality_E, scaling),
        objective,
    )
    torch.testing.assert_close(tensors.current_MT.grad.flatten(), closed_E.repeat_interleave(2) / 7)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.6931472), ("k2", 0.2402265), ("k3", 0.1931472)])
def test_divergence_estimators(estimator, expected):
    # d = ln 2: d, d^2 / 2 = 0.4804530 / 2, and e^-d - 1 + d = 0.5 - 1 + 0.6931472
    assert divergence(torch.tensor([math.log(2.0)]), estimator).item() == pytest.approx(expected, abs=1e-6)


def test_divergence_and_entropy_enter_with_their_weights():
    tensors = replace(
        one_token_rows([0.0, 0.0], [1, 1], [0.0, 0.0]),
        reference_MT=torch.full((2, 1), -math.log(2.0), dtype=torch.float64),
        entropy_MT=torch.tensor([[1.0], [3.0]], dtype=torch.float64),
    )
    # -0.5 * 0.1931472 (both tokens diverge by ln 2) + 0.25 * mean(1, 3) = -0.0965736 + 0.5
    value = objective_value(Objective(kl_coef=0.5, entropy_coef=0.25), tensors)
    assert value.item() == pytest.approx(0.4034264, abs=1e-6)


def test_a_term_without_its_tensor_is_misuse():
    tensors = one_token_rows([0.0], [1], [1.0])
    with pytest.raises(ConfigError, match="give reference_MT"):
        objective_value(Objective(kl_coef=0.1), tensors)
    with pytest.raises(ConfigError, match="entropy_coef is not zero"):
        objective_value(Objective(entropy_coef=0.1), tensors)


# --- correction of the mismatch between engine and trainer --------------------------------------------------------

LEVELS = ["token", "member", "event"]


def with_engine(tensors: LossTensors, spread: float = 0.5, seed: int = 7) -> LossTensors:
    noise_MT = torch.randn(tensors.old_MT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return replace(tensors, engine_MT=tensors.old_MT + spread * noise_MT)


def gradient_of(value: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, leaf)[0]


def differentiable(tensors: LossTensors) -> LossTensors:
    return replace(tensors, current_MT=tensors.current_MT.detach().requires_grad_())


@pytest.mark.parametrize(
    ("level", "fields", "expected"),
    [
        # Trainer over engine: event a has the rows (1.5, 4) and (1, 1/2), event b the row (1.2, hidden NaN).
        ("token", {}, [[1.5, 2.0], [1.0, 0.5], [1.2, 1.0]]),  # 4 is held at the cap
        ("token", {"correction_cap": math.inf}, [[1.5, 4.0], [1.0, 0.5], [1.2, 1.0]]),
        ("member", {}, [[2.0, 2.0], [0.5, 0.5], [1.2, 1.2]]),  # 1.5 x 4 = 6, held; 1 x 1/2; 1.2
        ("member", {"correction_cap": 10.0}, [[6.0, 6.0], [0.5, 0.5], [1.2, 1.2]]),
        # Means over two, two and one sampled tokens: sqrt 6, held at 2; sqrt 1/2; 1.2
        ("member", {"length_normalized": True}, [[2.0, 2.0], [0.5**0.5, 0.5**0.5], [1.2, 1.2]]),
        # Event a: 6 x 1/2 = 3, to the power 1, 1 / sqrt 2 and 1 / 2. Event b has one member: no scaling touches it.
        ("event", {"scaling": "none"}, [[2.0, 2.0], [2.0, 2.0], [1.2, 1.2]]),
        ("event", {"correction_cap": 10.0}, [[3 ** (0.5**0.5)] * 2, [3 ** (0.5**0.5)] * 2, [1.2, 1.2]]),
        ("event", {"scaling": "mean"}, [[3**0.5, 3**0.5], [3**0.5, 3**0.5], [1.2, 1.2]]),
    ],
)
def test_correction_weights_by_hand(level, fields, expected):
    ratio_MT = torch.tensor([[1.5, 4.0], [1.0, 0.5], [1.2, math.nan]], dtype=torch.float64)
    old_MT = torch.full((3, 2), -1.0, dtype=torch.float64)
    tensors = LossTensors(
        current_MT=old_MT,
        old_MT=old_MT,
        engine_MT=old_MT - ratio_MT.log(),
        token_mask_MT=~ratio_MT.isnan(),
        event_of_row_M=torch.tensor([0, 0, 1]),
        cardinality_E=torch.tensor([2, 1]),
        advantage_E=torch.ones(2, dtype=torch.float64),
    )
    weight_MT = correction_weight(Objective(correction=level, **fields), tensors)
    mask_MT = tensors.token_mask_MT
    assert torch.allclose(weight_MT[mask_MT], torch.tensor(expected, dtype=torch.float64)[mask_MT], rtol=1e-12)
    assert bool(weight_MT.isfinite().all())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ALL_PRESETS)
def test_a_correction_multiplies_each_tokens_derivative_and_no_other_term(name, level):
    objective = preset(name, kl_coef=0.3, correction=level)
    tensors = differentiable(with_engine(make_tensors()))
    plain, penalty = replace(objective, correction="none", kl_coef=0.0), replace(objective, correction="none")
    derivative_MT = gradient_of(objective_value(plain, tensors), tensors.current_MT)
    of_penalty_MT = gradient_of(objective_value(penalty, tensors), tensors.current_MT) - derivative_MT
    expected_MT = torch.where(
        tensors.token_mask_MT, correction_weight(objective, tensors) * derivative_MT + of_penalty_MT, 0.0
    )
    value = objective_value(objective, tensors)
    assert torch.allclose(gradient_of(value, tensors.current_MT), expected_MT, rtol=1e-10, atol=1e-14)
    assert value.item() == objective_value(penalty, tensors).item()  # ratio, clip and value are untouched


@pytest.mark.parametrize(
    ("unit", "level"),
    [
        ("set", "event"),
        ("sequence", "event"),
        ("sequence", "member"),
        ("token", "event"),
        ("token", "member"),
        ("token", "token"),
    ],
)
def test_a_weight_no_finer_than_the_unit_multiplies_its_surrogate(unit, level):
    objective = Objective(unit=unit, correction=level)
    tensors = differentiable(with_engine(make_tensors()))
    weight_MT, mask_MT = correction_weight(objective, tensors), tensors.token_mask_MT
    first_row_E = torch.cumsum(tensors.cardinality_E, 0) - tensors.cardinality_E
    of_unit = {"set": weight_MT[first_row_E, 0], "sequence": weight_MT[:, 0], "token": weight_MT[mask_MT]}[unit]
    found = units(objective, tensors)
    whole = (found.weight * of_unit * surrogate(found.log_ratio, found.advantage, objective)).sum()
    expected_MT = gradient_of(whole, tensors.current_MT)
    actual_MT = gradient_of(objective_value(objective, tensors), tensors.current_MT)
    assert torch.allclose(actual_MT, expected_MT, rtol=1e-12, atol=1e-15)
    assert not torch.allclose(
        actual_MT, gradient_of(objective_value(Objective(unit=unit), tensors), tensors.current_MT)
    )


def test_with_one_member_the_weights_of_member_and_event_are_the_same():
    tensors = with_engine(make_tensors(cardinalities=(1, 1, 1)))
    weights = [correction_weight(Objective(correction=level), tensors) for level in ("member", "event")]
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", ALL_PRESETS)
def test_without_a_correction_the_engine_is_not_read(name):
    tensors = differentiable(make_tensors())
    unread = replace(tensors, engine_MT=torch.full_like(tensors.old_MT, math.nan))
    values = [objective_value(PRESETS[name], each) for each in (tensors, unread)]
    assert torch.equal(*values)
    assert torch.equal(*(gradient_of(value, tensors.current_MT) for value in values))


def test_a_correction_without_the_engines_log_probabilities_is_refused():
    with pytest.raises(ConfigError, match="correction = 'event' needs the engine's log-probabilities"):
        objective_value(Objective(correction="event"), make_tensors())


@pytest.mark.parametrize("fields", [{"correction": "row"}, {"correction_cap": 0.5}, {"correction_cap": math.nan}])
def test_a_correction_that_cannot_be_is_refused(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        Objective(**fields)
