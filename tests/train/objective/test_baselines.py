"""The baselines' advantages: numbers worked out by hand, and what each promises for any returns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_train.objective import (
    METHODS,
    PRESETS,
    AdvantageSpec,
    CreditTable,
    describe,
    estimate_advantage,
    group_relative,
)


def one_agent_table(**changes) -> CreditTable:
    """Agent 0 in three episodes of one prompt, 3, 2 and 1 rows; a row of the second was malformed and scores 0.9."""
    columns = {
        "return_E": torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
        "return_M": torch.tensor([1.0, 1.0, 1.0, 0.9, 1.0, 0.0], dtype=torch.float64),
        "group_E": torch.zeros(6, dtype=torch.int64),
        "event_of_row_M": torch.arange(6),
        "episode_E": torch.tensor([0, 0, 0, 1, 1, 2]),
        "turn_E": torch.tensor([0, 1, 2, 0, 1, 0]),
        "agent_M": torch.zeros(6, dtype=torch.int64),
    }
    return CreditTable(**(columns | changes))


def anchored_table(**changes) -> CreditTable:
    """Three episodes of one prompt: all begin in state 0; the first two are in state 1 after it, the third in state 2.

    The last event pays: 1, 0 and 1.
    """
    columns = {
        "return_E": torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0]),
        "group_E": torch.zeros(6, dtype=torch.int64),
        "event_of_row_M": torch.arange(6),
        "episode_E": torch.tensor([0, 0, 1, 1, 2, 2]),
        "step_E": torch.tensor([0, 1, 0, 1, 0, 1]),
        "state_E": torch.tensor([0, 1, 0, 1, 0, 2]),
        "event_type_E": torch.tensor([0, 1, 0, 1, 0, 1]),
        "turn_E": torch.tensor([0, 1, 0, 1, 0, 1]),
        "agent_M": torch.tensor([0, 1, 0, 1, 0, 1]),
    }
    return CreditTable(**(columns | changes))


# --- Dr. MAS ------------------------------------------------------------------------------------------------------


def test_dr_mas_counts_every_row():
    # Six scores 1, 1, 1, 0.9, 1, 0: mean 0.8166667, squares 4 x 0.0336111 + 0.0069444 + 0.6669444 = 0.8083333, over 5:
    # deviation 0.4020779. (1 - mean) / deviation = 0.4559653, less a millionth part of 2.5 for the floor.
    advantage = estimate_advantage(one_agent_table(), PRESETS["dr_mas"].advantage).value
    assert advantage.tolist() == pytest.approx([0.455964] * 3 + [0.207256, 0.455964, -2.031110], abs=2e-6)


def test_dr_mas_weighted_by_trajectory_counts_every_episode_once():
    # Episode means 1, 0.95, 0: mean 0.65. Weighted squares 0.35^2 + (0.25^2 + 0.35^2) / 2 + 0.65^2 = 0.6375, over 2:
    # deviation 0.5645795.
    advantage = estimate_advantage(one_agent_table(), PRESETS["dr_mas_trajectory"].advantage).value
    assert advantage.tolist() == pytest.approx([0.619929] * 3 + [0.442806, 0.619929, -1.151297], abs=2e-6)


def test_a_single_row_of_dr_mas_keeps_its_score():
    # Agents of their own: mean 0, deviation 1, so s / 1.000001.
    alone = one_agent_table(agent_M=torch.arange(6))
    for name in ("dr_mas", "dr_mas_trajectory"):
        advantage = estimate_advantage(alone, PRESETS[name].advantage).value
        assert advantage.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.9, 1.0, 0.0], abs=2e-6)


def test_one_trajectory_alone_is_a_group_of_one_however_many_rows_it_has():
    returns, groups, same = torch.tensor([0.5, 1.0, 1.0]), torch.zeros(3, dtype=torch.int64), torch.zeros(3).long()
    alone = group_relative(returns, groups, trajectory_N=same, singleton="raw")
    assert alone.tolist() == pytest.approx([0.5, 1.0, 1.0], abs=2e-6)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.floats(-10, 10)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_weighted_advantages_sum_to_zero_over_trajectories(samples):
    groups, trajectories = torch.tensor([s[0] for s in samples]), torch.tensor([s[1] for s in samples])
    returns = torch.tensor([s[2] for s in samples], dtype=torch.float64)
    advantage = group_relative(returns, groups, trajectory_N=trajectories)
    for group in groups.unique():
        here = groups == group
        means = [float(advantage[here & (trajectories == t)].mean()) for t in trajectories[here].unique()]
        assert sum(means) == pytest.approx(0.0, abs=1e-3)


# --- the others ---------------------------------------------------------------------------------------------------


def test_at_grpo_compares_rows_of_one_turn():
    # Turn 0: 1, 0.9, 0: mean 0.6333333, squares 0.1344444 + 0.0711111 + 0.4011111 = 0.6066667, over 2: 0.5507571.
    # Turn 1: 1 and 1. Turn 2: one row, 0.
    advantage = estimate_advantage(one_agent_table(), PRESETS["at_grpo"].advantage).value
    assert advantage.tolist() == pytest.approx([0.665750, 0.0, 0.0, 0.484182, 0.0, -1.149931], abs=2e-6)


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo"])
def test_grpo_and_its_kin_compare_mean_scores_of_episodes(name):
    # 1, 0.95, 0: mean 0.65, squares 0.1225 + 0.09 + 0.4225 = 0.635, over 2: deviation 0.5634714.
    advantage = estimate_advantage(one_agent_table(), PRESETS[name].advantage).value
    assert advantage.tolist() == pytest.approx([0.621149] * 3 + [0.532413] * 2 + [-1.153562], abs=2e-6)


def test_rloo_compares_with_the_mean_of_the_others():
    # 1 - 0.95 / 2, 0.95 - 1 / 2, 0 - 1.95 / 2
    advantage = estimate_advantage(one_agent_table(), PRESETS["rloo"].advantage).value
    assert advantage.tolist() == pytest.approx([0.525] * 3 + [0.45] * 2 + [-0.975])


def test_magrpo_compares_events_of_one_turn_and_reinforce_with_the_whole_batch():
    # Turn 0: returns 1, 1, 0. Turn 1: 1, 1. Turn 2: 1 alone. Whole batch: mean 5/6.
    table = one_agent_table()
    magrpo = estimate_advantage(table, PRESETS["magrpo"].advantage).value
    assert magrpo.tolist() == pytest.approx([1 / 3, 0.0, 0.0, 1 / 3, 0.0, -2 / 3])
    apart = replace(table, group_E=torch.tensor([0, 0, 0, 1, 1, 2]))
    reinforce = estimate_advantage(apart, PRESETS["reinforce"].advantage).value
    assert reinforce.tolist() == pytest.approx([1 / 6] * 5 + [-5 / 6])


def test_gigpo_adds_the_comparison_at_equal_states():
    spec = replace(PRESETS["gigpo"].advantage, gamma=0.5, step_weight=2.0)
    # Episodes: returns 1, 0, 1: mean 2/3, deviation 0.5773503: 0.577349, -1.154699.
    # First events (state 0): discounted returns 0.5, 0, 0.5, the same numbers up to the floor.
    # Second events in state 1: 1 and 0: +-0.707106. The one in state 2 is alone: 0.
    advantage = estimate_advantage(anchored_table(), spec)
    assert advantage.level == "event"
    expected = [
        0.577349 + 2 * 0.577348,
        0.577349 + 2 * 0.707106,
        -1.154699 - 2 * 1.154697,
        -1.154699 - 2 * 0.707106,
        0.577349 + 2 * 0.577348,
        0.577349,
    ]
    assert advantage.value.tolist() == pytest.approx(expected, abs=5e-6)


def test_gigpo_discounts_what_comes_late():
    # Both episodes begin in state 0 and return 1, the second one event later: 1 against 0.5, mean 0.75, deviation
    # 0.3535534, so +-0.707105; the episodes compare equal.
    table = CreditTable(
        return_E=torch.tensor([1.0, 1.0, 1.0]),
        group_E=torch.zeros(3, dtype=torch.int64),
        event_of_row_M=torch.arange(3),
        episode_E=torch.tensor([0, 1, 1]),
        step_E=torch.tensor([0, 0, 1]),
        state_E=torch.tensor([0, 0, 1]),
    )
    spec = replace(PRESETS["gigpo"].advantage, gamma=0.5)
    assert estimate_advantage(table, spec).value.tolist() == pytest.approx([0.707105, -0.707105, 0.0], abs=2e-6)


def test_equal_states_of_different_prompts_are_no_anchor():
    apart = anchored_table(group_E=torch.tensor([0, 0, 1, 1, 2, 2]))
    assert estimate_advantage(apart, PRESETS["gigpo"].advantage).value.tolist() == [0.0] * 6


def test_ppo_whitens_its_advantages_and_leaves_its_targets():
    # Rewards 0, 1 and 0, 0 and 0, 1; values 0.5 everywhere, lambda 0.95. Last events: 0.5, -0.5, 0.5; first ones
    # 0.95 times that. Mean 0.1625; squares 2 x 0.3125^2 + 2 x 0.3375^2 + 0.6375^2 + 0.6625^2 = 1.2684375, over 5:
    # deviation 0.5036741.
    table = anchored_table(value_E=torch.full((6,), 0.5))
    advantage = estimate_advantage(table, PRESETS["ppo"].advantage)
    white = [0.620439, 0.670075, -1.265698, -1.315333, 0.620439, 0.670075]
    assert advantage.value.tolist() == pytest.approx(white, abs=5e-6)
    targets = [0.5 + 0.475, 1.0, 0.5 - 0.475, 0.0, 0.5 + 0.475, 1.0]
    assert advantage.value_target_E.tolist() == pytest.approx(targets)


def test_the_reward_of_an_event_that_is_left_out_counts_for_the_one_before_it():
    # Returns 0.9, 1, 1: rewards -0.1, 0, 1. Without the last event its 1 belongs to the middle one.
    table = CreditTable(
        return_E=torch.tensor([0.9, 1.0, 1.0], dtype=torch.float64),
        group_E=torch.zeros(3, dtype=torch.int64),
        event_of_row_M=torch.arange(3),
        episode_E=torch.zeros(3, dtype=torch.int64),
        step_E=torch.arange(3),
    )
    assert table.rewards(table.episodes()[0]).tolist() == pytest.approx([-0.1, 0.0, 1.0])
    kept = table.select(torch.tensor([1, 0]))
    assert kept.rewards(kept.episodes()[0]).tolist() == pytest.approx([-0.1, 1.0])


# --- what a method promises for any returns -----------------------------------------------------------------------

# Dr. MAS keeps the raw return of a row alone in its group, PPO compares with values: neither is shift-free.
SHIFT_FREE = sorted(set(PRESETS) - {"dr_mas", "dr_mas_trajectory", "ppo"})
DIVIDING = sorted(set(SHIFT_FREE) - {"magrpo", "rloo", "reinforce"})

three_returns = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=3, max_size=3)


def advantages(name, returns):
    table = anchored_table(return_E=torch.tensor(returns, dtype=torch.float64).repeat_interleave(2))
    return estimate_advantage(table, PRESETS[name].advantage).value


@pytest.mark.parametrize("name", SHIFT_FREE)
@given(returns=three_returns, constant=st.integers(-4, 4))
@settings(max_examples=15, deadline=None)
def test_a_constant_on_every_return_changes_nothing(name, returns, constant):
    shifted = advantages(name, [value + constant for value in returns])
    assert torch.allclose(shifted, advantages(name, returns), atol=1e-4)


@pytest.mark.parametrize("name", DIVIDING)
@given(returns=three_returns, factor=st.sampled_from([0.5, 2.0, 10.0]))
@settings(max_examples=15, deadline=None)
def test_the_unit_of_rewards_changes_nothing_where_deviations_divide(name, returns, factor):
    scaled = advantages(name, [value * factor for value in returns])
    assert torch.allclose(scaled, advantages(name, returns), atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"dr_mas", "dr_mas_trajectory", "ppo"}))
@given(returns=three_returns)
@settings(max_examples=15, deadline=None)
def test_relative_advantages_of_a_batch_sum_to_zero(name, returns):
    assert float(advantages(name, returns).sum()) == pytest.approx(0.0, abs=1e-4)


@given(returns=three_returns, values=st.lists(st.integers(-4, 4), min_size=6, max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_perfect_critic_leaves_no_advantage_and_with_lambda_1_targets_are_returns(returns, values):
    table = anchored_table(return_E=torch.tensor(returns, dtype=torch.float64).repeat_interleave(2))
    perfect = estimate_advantage(replace(table, value_E=table.return_E), PRESETS["ppo"].advantage)
    assert perfect.value.tolist() == [0.0] * 6
    some = replace(table, value_E=torch.tensor(values, dtype=torch.float64))
    spec = replace(PRESETS["ppo"].advantage, gae_lambda=1.0)
    targets = estimate_advantage(some, spec).value_target_E
    assert targets.double().tolist() == pytest.approx(table.return_E.tolist(), abs=1e-5)


# --- names --------------------------------------------------------------------------------------------------------


def test_every_preset_belongs_to_a_method_and_methods_of_one_preset_differ_in_their_policies():
    assert {method.preset for method in METHODS} == set(PRESETS)
    assert len({(method.preset, method.team) for method in METHODS}) == len(METHODS)


def test_a_description_says_what_is_compared_clipped_and_averaged():
    words = {
        "advantage": "row_relative",
        "compared within": "prompt, agent",
        "ratio of": "token",
        "clip": "-0.2, +0.2, dual 3",
        "mean over": "tokens",
    }
    assert describe(PRESETS["dr_mas"]) == words
    assert describe(PRESETS["reinforce"])["compared within"] == "batch"
    assert describe(PRESETS["gspo"])["ratio of"] == "sequence, per token"
    assert describe(PRESETS["srpo_mean"])["ratio of"] == "set, mean"
    assert describe(PRESETS["magrpo"])["clip"] == "-"
    assert describe(PRESETS["ppo"])["compared within"] == "a critic's values"
    assert AdvantageSpec(estimator="gae").needs_critic
