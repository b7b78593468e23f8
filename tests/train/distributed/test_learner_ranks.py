"""An update on several processes is the update on one: events, counts, norms, steps and reports."""

from __future__ import annotations

import math

import pytest
import torch
from rank_world import Case, build_team, make_batch, make_learner, run_ranks, train_case, train_cases, whole_weights

from srpo_train.config import OptimConfig
from srpo_train.distributed.ranks import Ranks
from srpo_train.objective import PRESETS
from srpo_train.policies.critic import Critic
from srpo_train.value_learner import ValueLearner

EXTRAS = {"kl_coef": 0.3, "entropy_coef": 0.02}

CASES = {
    **{f"preset {name}": Case(preset=name) for name in PRESETS},
    "several policies": Case(team="several"),
    "several policies, kl and entropy": Case(team="several", extras=EXTRAS),
    "adapters on one base": Case(team="adapters", extras=EXTRAS),
    "one event, ranks without any": Case(team="several", cardinalities=(3,)),
    "no clipped norm": Case(optim={"max_grad_norm": 1e6}),
    "rows one by one": Case(team="several", optim={"micro_batch_tokens": 1}),
    "on policy, one step": Case(optim={"num_epochs": 1, "num_minibatches": 1}),
    "role weights": Case(team="several", extras={"role_weights": "balanced"}),
    "correction": Case(extras={"correction": "event"}),
    "sharded": Case(sharding="fsdp", dtype="float32"),
    "sharded, rows one by one": Case(team="several", sharding="fsdp", dtype="float32", optim={"micro_batch_tokens": 1}),
    "sharded, kl and entropy": Case(team="several", extras=EXTRAS, sharding="fsdp", dtype="float32"),
    "sharded, one event": Case(team="several", cardinalities=(2,), sharding="fsdp", dtype="float32"),
}
ON_FOUR = ("preset srpo", "several policies, kl and entropy", "one event, ranks without any", "sharded, one event")
RUNS = [(2, name) for name in CASES] + [(4, name) for name in ON_FOUR]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By number of processes, rank and case, what training gave."""
    found = {}
    for size in (2, 4):
        names = [name for number, name in RUNS if number == size]
        results = run_ranks(size, tmp_path_factory.mktemp("ranks"), train_cases, [CASES[name] for name in names])
        found[size] = [dict(zip(names, ours, strict=True)) for ours in results]
    return found


@pytest.fixture(scope="module")
def alone():
    """What one process gives, by case."""
    return {name: train_case(Ranks(), _unsharded(case)) for name, case in CASES.items()}


def _unsharded(case):
    return Case(**(vars(case) | {"sharding": "none"}))


@pytest.mark.parametrize(("size", "name"), RUNS)
def test_weights_and_metrics_are_those_of_one_process(outcomes, alone, size, name):
    metrics, weights = outcomes[size][0][name]
    expected_metrics, expected_weights = alone[name]
    moved = max(float((weights[p] - whole_weights(_start(CASES[name])[p])).abs().max()) for p in weights)
    assert moved > 1e-3  # what is compared below is much smaller than a step
    for policy_id, expected in expected_weights.items():
        torch.testing.assert_close(weights[policy_id], expected, rtol=0, atol=1e-5)
    assert metrics == pytest.approx(expected_metrics, rel=1e-4, abs=1e-5)


def _start(case):
    return build_team(case.team, case.dtype)


@pytest.mark.parametrize(("size", "name"), RUNS)
def test_all_ranks_end_at_the_same_numbers(outcomes, size, name):
    metrics, weights = outcomes[size][0][name]
    for found in outcomes[size][1:]:
        assert found[name][0] == metrics
        assert all(torch.equal(found[name][1][policy_id], weights[policy_id]) for policy_id in weights)


# --- steps that are skipped, and the critic -----------------------------------------------------------------------


def update_with_a_broken_rank(ranks):
    learner, team = make_learner(Case(), ranks)
    before = whole_weights(team["a"])
    if ranks.rank == 1:
        next(team["a"].model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    metrics = learner.update(make_batch(Case(), ["a"]), step=0, seed=0)
    return metrics, torch.equal(whole_weights(team["a"]), before)


def test_no_rank_steps_where_one_has_a_gradient_that_is_not_finite(tmp_path):
    for metrics, is_unmoved in run_ranks(2, tmp_path, update_with_a_broken_rank):
        assert metrics["train/num_nonfinite_steps"] == 4
        assert metrics["train/num_updates"] == 0
        assert is_unmoved


def train_critic(ranks):
    critic = Critic.load("builtin:tiny-team", device="cpu")
    config = OptimConfig(lr=0.5, eps=1.0, num_minibatches=2, num_epochs=2, micro_batch_tokens=40)
    learner = ValueLearner(critic, config, value_clip=0.2, num_steps=4, ranks=ranks)
    batch = make_batch(Case(team="several"), ["a", "b"])
    batch = type(batch)(**(vars(batch) | {"value_E": learner.values(batch), "value_target_E": batch.advantage_E}))
    metrics = learner.update(batch, step=0, seed=0)
    return metrics, torch.cat([parameter.detach().flatten() for parameter in critic.parameters]), learner.values(batch)


def test_a_critic_learns_what_it_learns_on_one_process(tmp_path):
    expected, weights, values = train_critic(Ranks())
    for metrics, found, found_values in run_ranks(2, tmp_path, train_critic):
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
        torch.testing.assert_close(found, weights, rtol=0, atol=1e-5)
        torch.testing.assert_close(found_values, values, rtol=0, atol=1e-5)
    assert values.abs().max() > 1e-3  # the head began at 0
