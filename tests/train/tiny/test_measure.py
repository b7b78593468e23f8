from __future__ import annotations

import pytest

from srpo_train.tiny.arithmetic.curriculum import ARITHMETIC
from srpo_train.tiny.make import CURRICULA
from srpo_train.tiny.measure import make_held_out, measure_policy


@pytest.fixture(scope="module")
def rates(shipped_policy):
    return measure_policy(shipped_policy, ARITHMETIC, 48, seed=0)


def test_rates_are_shares_of_what_happened(rates):
    assert list(rates) == list(ARITHMETIC.measurements)
    shares = [value for by_name in rates.values() for name, value in by_name.items() if name != "tokens"]
    assert all(0 <= share <= 1 for share in shares)
    assert {name for name in rates["team_routed"] if name.startswith("valid/")} == {
        f"valid/{role}" for role in ("router", "solver", "verifier", "aggregator")
    }


def test_a_single_agent_s_reward_is_its_share_of_right_answers(rates):
    assert rates["single"]["reward"] == rates["single"]["right/solver"]


def test_the_seed_decides_samples_but_not_likeliest_tokens(shipped_policy, rates):
    assert measure_policy(shipped_policy, ARITHMETIC, 48, seed=0) == rates
    other = measure_policy(shipped_policy, ARITHMETIC, 48, seed=1)
    assert other["single"] != rates["single"]
    assert other["team_greedy"] == rates["team_greedy"]


def test_a_role_that_never_acted_has_no_rates(made):
    # After five steps of learning no route is valid, so nobody drafts.
    _, report = made
    rates = report["measured"]["team_routed"]
    assert set(rates) == {"reward", "tokens", "valid/router"}
    assert rates["reward"] == rates["valid/router"] == 0.0


@pytest.mark.parametrize("how", [how for curriculum in CURRICULA.values() for how in curriculum.measurements.values()])
def test_every_measurement_plays_held_out_questions(how):
    tasks = make_held_out(how, 4).tasks
    assert (tasks.split, tasks.level, tasks.num_tasks) == ("test", how.kwargs["level"], 4)
