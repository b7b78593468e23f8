"""Equation 6 and the estimators of the baselines."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.errors import ConfigError, NonFiniteError, ShapeError, UnknownIdError
from srpo_train.objective import (
    ESTIMATORS,
    Advantage,
    AdvantageSpec,
    CreditTable,
    estimate_advantage,
    generalized_advantage,
    group_relative,
    leave_one_out,
    mean_relative,
    register_estimator,
)

# Returns 1, 0, 0, 1, 1: mean 0.6, deviations 0.4, -0.6, -0.6, 0.4, 0.4, squares sum to 1.2.
# Sample deviation sqrt(1.2 / 4) = 0.5477226, population sqrt(1.2 / 5) = 0.4898979.
RETURNS = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(("ddof", "high", "low"), [(1, 0.7302954, -1.0954431), (0, 0.8164949, -1.2247424)])
def test_group_relative_is_the_distance_to_the_mean_in_deviations(ddof, high, low):
    """br-036: normalised once, to the hand value."""
    advantage = group_relative(RETURNS, torch.zeros(5, dtype=torch.int64), ddof=ddof)
    assert advantage.tolist() == pytest.approx([high, low, low, high, high], abs=2e-6)


def test_groups_do_not_see_each_other():
    # Group 7 holds returns 3 and 1: mean 2, sample deviation sqrt(2), so +-1 / 1.4142136 = +-0.7071063 (floor 1e-6).
    # Group 2 holds 100 and 104: mean 102, deviation sqrt(8), so the same numbers.
    advantage = group_relative(torch.tensor([3.0, 100.0, 1.0, 104.0]), torch.tensor([7, 2, 7, 2]))
    assert advantage.tolist() == pytest.approx([0.7071063, -0.7071066, -0.7071063, 0.7071066], abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, -3.7, 1e6])
def test_equal_returns_give_exactly_zero(value):
    """br-037: the deviation of equal returns is rounding noise and is not divided by."""
    noisy = torch.tensor([value] * 7 + [value * (1 + 2**-24)])
    assert group_relative(noisy, torch.zeros(8, dtype=torch.int64)).tolist() == [0.0] * 8
    thirds = torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64)  # differ in the last bit
    assert group_relative(thirds, torch.zeros(2, dtype=torch.int64)).tolist() == [0.0, 0.0]


def test_a_group_of_one_gives_zero_or_its_own_return():
    """br-037: a router makes groups of one; the choice is explicit and finite."""
    returns, groups = torch.tensor([0.5, 1.0, 0.0]), torch.tensor([4, 9, 9])
    assert group_relative(returns, groups)[0] == 0.0
    # mean 0 and deviation 1: 0.5 / 1.000001
    assert group_relative(returns, groups, singleton="raw")[0].item() == pytest.approx(0.4999995, abs=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_return_that_is_not_finite_raises_or_is_left_out(bad):
    """br-037: one NaN return neither spreads nor passes unseen."""
    returns, groups = torch.tensor([1.0, bad, 0.0]), torch.zeros(3, dtype=torch.int64)
    for function in (group_relative, mean_relative, leave_one_out):
        with pytest.raises(NonFiniteError, match="return 1: expected a finite number"):
            function(returns, groups)
    # Without it the group is 1 and 0: +-0.5 / (sqrt(0.5) + 1e-6) = +-0.7071058
    excluded = group_relative(returns, groups, non_finite="exclude")
    assert excluded.tolist() == pytest.approx([0.7071058, 0.0, -0.7071058], abs=1e-6)
    assert mean_relative(returns, groups, non_finite="exclude").tolist() == [0.5, 0.0, -0.5]
    assert leave_one_out(returns, groups, non_finite="exclude").tolist() == [1.0, 0.0, -1.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10)), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_advantages_are_finite_and_sum_to_zero_in_every_group(samples):
    groups = torch.tensor([group for group, _ in samples])
    returns = torch.tensor([value for _, value in samples], dtype=torch.float64)
    for advantage in (group_relative(returns, groups), mean_relative(returns, groups), leave_one_out(returns, groups)):
        assert torch.isfinite(advantage).all()
        for group in groups.unique():
            assert advantage[groups == group].sum().item() == pytest.approx(0.0, abs=1e-3)


def test_leave_one_out_compares_with_the_others():
    # 1 - (0 + 0 + 1 + 1) / 4 = 0.5 and 0 - (1 + 0 + 1 + 1) / 4 = -0.75; the sample alone in its group gives 0
    advantage = leave_one_out(torch.cat([RETURNS, torch.tensor([8.0])]), torch.tensor([0, 0, 0, 0, 0, 1]))
    assert advantage.tolist() == pytest.approx([0.5, -0.75, -0.75, 0.5, 0.5, 0.0])


def test_generalized_advantage_follows_the_recursion():
    # gamma 0.9, lambda 0.5. delta_2 = 1 + 0.9 * 0.2 - 0.4 = 0.78; delta_1 = 0 + 0.9 * 0.4 - 0.5 = -0.14;
    # delta_0 = 0.1 + 0.9 * 0.5 - 0.3 = 0.25. A_2 = 0.78, A_1 = -0.14 + 0.45 * 0.78 = 0.211,
    # A_0 = 0.25 + 0.45 * 0.211 = 0.34495
    advantage = generalized_advantage(
        torch.tensor([0.1, 0.0, 1.0]), torch.tensor([0.3, 0.5, 0.4]), gamma=0.9, gae_lambda=0.5, bootstrap=0.2
    )
    assert advantage.tolist() == pytest.approx([0.34495, 0.211, 0.78])


# --- estimators over a table: two rollouts of one prompt ----------------------------------------------------------
# Rollout 0 (return 1): drafts by agents 0 and 1 (event 0, K = 2), verdict by agent 2 (event 1).
# Rollout 1 (return 0): drafts (event 2), verdict (event 3), a revision by agent 0 in turn 1 (event 4).


def team_table(**changes) -> CreditTable:
    columns = {
        "return_E": torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]),
        "group_E": torch.tensor([5, 5, 5, 5, 5]),
        "event_type_E": torch.tensor([0, 1, 0, 1, 0]),
        "turn_E": torch.tensor([0, 0, 0, 0, 1]),
        "episode_E": torch.tensor([10, 10, 11, 11, 11]),
        "step_E": torch.tensor([0, 1, 0, 1, 2]),
        "event_of_row_M": torch.tensor([0, 0, 1, 2, 2, 3, 4]),
        "agent_M": torch.tensor([0, 1, 2, 0, 1, 2, 0]),
    }
    return CreditTable(**(columns | changes))


def test_srpo_compares_events_of_one_prompt_and_type():
    advantage = estimate_advantage(team_table(), AdvantageSpec())
    assert advantage.level == "event"
    # Drafting events 0, 2, 4: returns 1, 0, 0, mean 1/3, deviation 0.5773503: 1.1547, -0.57735, -0.57735.
    # Verdicts 1, 3: returns 1, 0: +-0.7071058.
    assert advantage.value.tolist() == pytest.approx([1.1547, 0.707106, -0.57735, -0.707106, -0.57735], abs=1e-5)
    assert advantage.on_rows(torch.tensor([0, 0, 1])).tolist() == pytest.approx([1.1547, 1.1547, 0.707106], abs=1e-5)


def test_adding_the_turn_to_the_key_separates_the_revision():
    key = ("group", "event_type", "turn")
    advantage = estimate_advantage(team_table(), AdvantageSpec(group_key=key)).value
    assert advantage.tolist() == pytest.approx([0.707106, 0.707106, -0.707106, -0.707106, 0.0], abs=1e-5)


def test_dr_mas_compares_all_rows_of_an_agent():
    spec = AdvantageSpec(estimator="row_relative", group_key=("group", "agent"), singleton="raw")
    advantage = estimate_advantage(team_table(), spec)
    assert advantage.level == "row"
    # Agent 0 has scores 1, 0, 0 in rows 0, 3, 6; agents 1 and 2 have 1, 0.
    expected = [1.1547, 0.707106, 0.707106, -0.57735, -0.707106, -0.707106, -0.57735]
    assert advantage.value.tolist() == pytest.approx(expected, abs=1e-5)


def test_at_grpo_separates_turns_too():
    spec = AdvantageSpec(estimator="row_relative", group_key=("group", "turn", "agent"))
    advantage = estimate_advantage(team_table(), spec).value
    assert advantage.tolist() == pytest.approx([0.707106] * 3 + [-0.707106] * 3 + [0.0], abs=1e-5)


def test_grpo_gives_every_row_its_trajectorys_advantage():
    # A penalty of 0.3 on one of three rows of rollout 0 makes its mean score 0.9; rollout 1 has 0: +-0.45 / 0.6363961
    scores = torch.tensor([1.0, 0.7, 1.0, 0.0, 0.0, 0.0, 0.0])
    spec = AdvantageSpec(estimator="trajectory_relative", group_key=("group",))
    advantage = estimate_advantage(team_table(return_M=scores), spec).value
    assert advantage.tolist() == pytest.approx([0.707106] * 3 + [-0.707106] * 4, abs=1e-5)
    spec = AdvantageSpec(estimator="leave_one_out", group_key=("group",))
    advantage = estimate_advantage(team_table(return_M=scores), spec).value
    assert advantage.tolist() == pytest.approx([0.9] * 3 + [-0.9] * 4)


def test_magrpo_takes_off_the_mean_of_the_turn():
    advantage = estimate_advantage(team_table(), AdvantageSpec(estimator="mean_relative", group_key=("group", "turn")))
    assert advantage.value.tolist() == [0.5, 0.5, -0.5, -0.5, 0.0]


def test_gae_walks_each_episode_in_order_of_its_steps():
    # Events of the two episodes interleaved and reversed; gamma = lambda = 1, so A_t is the event's return less its
    # value, and the target A + V is the return: episode 0 has returns 1, 1 and values 0.5, 0.25; episode 1 has returns
    # 0, -1 and values 0.5, 0.5.
    table = CreditTable(
        return_E=torch.tensor([-1.0, 1.0, 0.0, 1.0]),
        group_E=torch.zeros(4, dtype=torch.int64),
        event_of_row_M=torch.arange(4),
        episode_E=torch.tensor([1, 0, 1, 0]),
        step_E=torch.tensor([1, 1, 0, 0]),
        value_E=torch.tensor([0.5, 0.25, 0.5, 0.5]),
    )
    advantage = estimate_advantage(table, AdvantageSpec(estimator="gae"))
    assert advantage.value.tolist() == pytest.approx([-1.5, 0.75, -0.5, 0.5])
    assert advantage.value_target_E.tolist() == pytest.approx([-1.0, 1.0, 0.0, 1.0])
    # lambda 0: A_t = r_t + V_{t+1} - V_t with rewards 1, -1 (episode 1) and 0, 1 (episode 0).
    steps = estimate_advantage(table, AdvantageSpec(estimator="gae", gae_lambda=0.0))
    assert steps.value.tolist() == pytest.approx([-1 - 0.5, 1 - 0.25, 1 + 0.5 - 0.5, 0.25 - 0.5])


def test_rejected_events_leave_the_baseline_of_their_siblings():
    """br-012: statistics come from the kept events only, to the hand value."""
    table = team_table(return_E=torch.tensor([1.0, 1.0, 0.0, 0.0, -50.0]))
    kept = table.select(torch.tensor([0, 1, 2, 3]))
    # Without the revision the drafting events are 1 and 0: +-0.7071058; with it they would be about 0.59 and 0.56.
    advantage = estimate_advantage(kept, AdvantageSpec()).value
    assert advantage.tolist() == pytest.approx([0.707106, 0.707106, -0.707106, -0.707106], abs=1e-5)


def test_selecting_events_renumbers_their_rows():
    kept = team_table().select(torch.tensor([4, 0]))
    assert kept.event_of_row_M.tolist() == [1, 1, 0]
    assert kept.agent_M.tolist() == [0, 1, 0]
    assert kept.step_E.tolist() == [2, 0]


def test_row_advantages_become_the_mean_of_their_event():
    advantage = Advantage(value=torch.tensor([1.0, 2.0, 5.0]), level="row")
    assert advantage.on_events(torch.tensor([0, 0, 1]), 2).tolist() == [1.5, 5.0]


def test_misuse_of_the_table_names_the_column():
    with pytest.raises(ShapeError, match=r"turn_E: expected \[5\], got \[2\]"):
        team_table(turn_E=torch.zeros(2))
    with pytest.raises(ConfigError, match="group key 'agent': not a column of this credit table for events"):
        estimate_advantage(team_table(), AdvantageSpec(group_key=("agent",)))
    with pytest.raises(ConfigError, match="'gae' needs a critic's values, value_E"):
        estimate_advantage(team_table(), AdvantageSpec(estimator="gae"))
    with pytest.raises(ConfigError, match="group key 'state': not a column"):
        estimate_advantage(team_table(), AdvantageSpec(estimator="gigpo", group_key=("group",)))
    with pytest.raises(UnknownIdError, match="did you mean 'group_relative'"):
        estimate_advantage(team_table(), AdvantageSpec(estimator="group_relativ"))
    with pytest.raises(ConfigError, match="'ddof': expected 0 or 1, got 2"):
        AdvantageSpec(ddof=2)


def test_a_new_estimator_is_a_registered_function():
    try:

        @register_estimator("raw_return")
        def raw_return(table: CreditTable, spec: AdvantageSpec) -> Advantage:
            return Advantage(value=table.return_E, level="event")

        advantage = estimate_advantage(team_table(), AdvantageSpec(estimator="raw_return"))
        assert advantage.value.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    finally:
        del ESTIMATORS["raw_return"]
