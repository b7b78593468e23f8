"""The learner: optimiser steps on whole events, skipped steps, schedules, state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from srpo_envs.errors import NonFiniteError
from srpo_train import learner as learner_module
from srpo_train.batching import EventBatch, MemberRow
from srpo_train.config import OptimConfig
from srpo_train.learner import Learner, schedule_factor
from srpo_train.metrics import check_name
from srpo_train.objective import preset
from srpo_train.policies import Policy
from srpo_train.policies.logprobs import ModelScorer

# (policy of each member row) by event; event 0 is rewarded, event 1 is not.
SHARED = (("a", "a"), ("a",))
FROM_THE_ENGINE = ("train/engine_gap", "train/entropy")


def make_batch(policies=SHARED, advantages=(1.0, -1.0)):
    rows = [
        MemberRow(
            event_index=event,
            member_index=member,
            policy_id=policy_id,
            prompt_ids=[3, 4, 5],
            token_ids=[6 + event, 7 + member, 8],
            old_logprobs=[-3.0, -3.0, -3.0],
        )
        for event, members in enumerate(policies)
        for member, policy_id in enumerate(members)
    ]
    return EventBatch(
        rows=rows,
        cardinality_E=torch.tensor([len(members) for members in policies]),
        advantage_E=torch.tensor(advantages),
        event_ids=[f"e{event}" for event in range(len(policies))],
    )


def load(tiny_checkpoint, *policy_ids):
    return {policy_id: Policy.load(policy_id, tiny_checkpoint, device="cpu") for policy_id in policy_ids}


def make_learner(policies, *, objective=None, **optim):
    return Learner(policies, objective or preset("srpo"), OptimConfig(**({"lr": 1e-3} | optim)), num_steps=10)


def weights(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]).clone()


def logprob(policy, row):
    with torch.no_grad():
        return float(ModelScorer(model=policy.model)([row]).logprobs_MT.sum())


def test_rewarded_events_become_likelier_and_others_less(tiny_checkpoint):
    policies = load(tiny_checkpoint, "a")
    batch = make_batch()
    before = [logprob(policies["a"], row) for row in batch.rows]
    make_learner(policies).update(batch, step=0, seed=0)
    after = [logprob(policies["a"], row) for row in batch.rows]
    assert after[0] + after[1] > before[0] + before[1]
    assert after[2] < before[2]


def test_a_policy_without_rows_keeps_its_weights(tiny_checkpoint):
    policies = load(tiny_checkpoint, "a", "b")
    before = weights(policies["b"])
    metrics = make_learner(policies, weight_decay=0.1).update(make_batch(), step=0, seed=0)
    assert torch.equal(weights(policies["b"]), before)
    assert metrics["train/grad_norm/b"] == 0.0
    assert metrics["train/grad_norm"] == metrics["train/grad_norm/a"] > 0


def test_isolated_policies_are_all_updated_by_their_own_rows(tiny_checkpoint):
    policies = load(tiny_checkpoint, "a", "b")
    before = {policy_id: weights(policy) for policy_id, policy in policies.items()}
    make_learner(policies).update(make_batch((("a", "b"), ("b",))), step=0, seed=0)
    for policy_id, policy in policies.items():
        assert not torch.equal(weights(policy), before[policy_id])


def test_nothing_is_clipped_at_the_first_update_and_the_ratio_moves_after_it(tiny_checkpoint):
    learner = make_learner(load(tiny_checkpoint, "a"), lr=1e-2, num_epochs=3)
    metrics = learner.update(make_batch(), step=0, seed=0)
    assert metrics["train/first_clip_fraction"] == 0.0
    assert metrics["train/clip_fraction"] > 0.0
    assert metrics["train/ratio_max"] > 1.2


def test_every_epoch_deals_the_events_anew_and_counts_them_once(tiny_checkpoint, monkeypatch):
    dealt = []
    accumulate = learner_module.accumulate_set_gradient

    def spy(objective, batch, *arguments, **settings):
        dealt.append(tuple(batch.event_ids))
        return accumulate(objective, batch, *arguments, **settings)

    monkeypatch.setattr(learner_module, "accumulate_set_gradient", spy)
    batch = make_batch((("a",),) * 6, (1.0, -1.0) * 3)
    learner = make_learner(load(tiny_checkpoint, "a"), num_minibatches=2, num_epochs=2)
    metrics = learner.update(batch, step=0, seed=0)
    assert metrics["train/num_events"] == metrics["train/num_rows"] == 6
    assert metrics["train/num_updates"] == 4
    first, second = dealt[:2], dealt[2:]
    assert sorted(sum(first, ())) == sorted(sum(second, ())) == [f"e{event}" for event in range(6)]
    assert first != second


def test_the_variance_of_the_log_ratio_is_that_before_the_last_update(tiny_checkpoint):
    # Four events of one member; a mean over both epochs would count the zeros of the first and halve it.
    learner = make_learner(load(tiny_checkpoint, "a"), num_epochs=2)
    metrics = learner.update(make_batch((("a",),) * 4, (1.0, -1.0, 1.0, -1.0)), step=0, seed=0)
    assert metrics["train/log_ratio_var/k1"] == pytest.approx(metrics["train/log_ratio_std"] ** 2, rel=1e-9)
    assert metrics["train/log_ratio_var/k1"] > 0.0


def test_bfloat16_weights_move_by_many_steps_too_small_for_their_format(tiny_checkpoint):
    policy = Policy.load("a", tiny_checkpoint, dtype="bfloat16", device="cpu")
    before = weights(policy)
    learner = make_learner({"a": policy}, lr=1e-5)
    for step in range(10):
        learner.update(make_batch(), step=step, seed=step)
    masters = torch.cat([master.flatten() for master in learner.state_dict()["optimizers"]["a"]["masters"]])
    # Adam moves a weight by at most about lr a step; half of the ten steps is what consistent gradients surely give.
    assert float((masters - before.float()).abs().median()) > 5e-5
    assert torch.equal(weights(policy), masters.to(torch.bfloat16))


def test_a_batch_used_once_has_ratio_exactly_one(tiny_checkpoint):
    metrics = make_learner(load(tiny_checkpoint, "a")).update(make_batch(), step=0, seed=0)
    assert metrics["train/ratio_min"] == metrics["train/ratio_max"] == 1.0
    assert metrics["train/clip_fraction"] == 0.0


def test_the_logged_norm_is_the_one_before_clipping(tiny_checkpoint):
    free, clipped = (
        make_learner(load(tiny_checkpoint, "a"), max_grad_norm=limit).update(make_batch(), step=0, seed=0)
        for limit in (1e9, 1e-3)
    )
    assert clipped["train/grad_norm"] == free["train/grad_norm"] > 1e-3


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_the_engine_gap_is_the_mean_difference_of_log_probabilities(tiny_checkpoint, num_epochs):
    policies = load(tiny_checkpoint, "a")
    batch = make_batch()
    rows = batch.rows
    with torch.no_grad():
        scored = ModelScorer(model=policies["a"].model)(rows).logprobs_MT
    expected = float((scored + 3.0).abs().mean())  # the engine's were written as -3
    metrics = make_learner(policies, num_epochs=num_epochs).update(batch, step=0, seed=0)
    assert metrics["train/engine_gap"] == pytest.approx(expected, rel=1e-5)
    assert metrics["train/entropy"] == 3.0


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_the_engines_log_probabilities_do_not_enter_the_update(tiny_checkpoint, num_epochs):
    outcomes = []
    for engine_logprob in (-3.0, -0.5):
        policies = load(tiny_checkpoint, "a")
        batch = make_batch((("a", "a"),) * 4, (1.0, -1.0) * 2)
        batch = replace(batch, rows=[replace(row, old_logprobs=[engine_logprob] * 3) for row in batch.rows])
        metrics = make_learner(policies, num_minibatches=2, num_epochs=num_epochs).update(batch, step=0, seed=0)
        outcomes.append((weights(policies["a"]), {k: v for k, v in metrics.items() if k not in FROM_THE_ENGINE}))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert outcomes[0][1] == outcomes[1][1]


def test_only_mini_batches_after_the_first_are_scored_before_the_update(tiny_checkpoint, monkeypatch):
    scored = []
    score = learner_module.with_logprobs

    def spy(batch, *arguments, **settings):
        scored.extend(batch.event_ids)
        return score(batch, *arguments, **settings)

    monkeypatch.setattr(learner_module, "with_logprobs", spy)
    batch = make_batch((("a",),) * 6, (1.0, -1.0) * 3)
    make_learner(load(tiny_checkpoint, "a"), num_minibatches=3).update(batch, step=0, seed=0)
    assert len(scored) == len(set(scored)) == 4


def test_steps_that_are_not_finite_are_skipped_and_counted(tiny_checkpoint):
    policies = load(tiny_checkpoint, "a")
    before = weights(policies["a"])
    learner = make_learner(policies, max_nonfinite_steps=1)
    metrics = learner.update(make_batch(advantages=(math.nan, 1.0)), step=0, seed=0)
    assert metrics["train/num_nonfinite_steps"] == 1
    assert metrics["train/num_updates"] == 0
    assert torch.equal(weights(policies["a"]), before)


def test_too_many_steps_in_a_row_that_are_not_finite_stop_the_run(tiny_checkpoint):
    learner = make_learner(load(tiny_checkpoint, "a"), max_nonfinite_steps=1)
    bad = make_batch(advantages=(math.nan, 1.0))
    learner.update(bad, step=0, seed=0)
    learner.update(make_batch(), step=1, seed=0)  # a good step between forgives
    learner.update(bad, step=2, seed=0)
    with pytest.raises(NonFiniteError, match="2 optimiser steps in a row"):
        learner.update(bad, step=3, seed=0)


def test_a_restored_learner_goes_on_as_if_it_had_never_stopped(tiny_checkpoint, tmp_path):
    def run(stops):
        policies = load(tiny_checkpoint, "a")
        learner = make_learner(policies, num_minibatches=2)
        for step in range(4):
            if step in stops:
                policies["a"].save(tmp_path / "stop")
                torch.save(learner.state_dict(), tmp_path / "state.pt")
                policies = {"a": Policy.load("a", tmp_path / "stop", device="cpu")}
                learner = make_learner(policies, num_minibatches=2)
                learner.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            learner.update(make_batch(), step=step, seed=step)
        return weights(policies["a"])

    assert torch.equal(run(stops=()), run(stops=(1, 3)))


def test_a_divergence_penalty_holds_the_policy_at_its_reference(tiny_checkpoint):
    # Adam makes weight distances say little; what the penalty bounds is how far the log-probabilities drift.
    def drift(kl_coef):
        policies = load(tiny_checkpoint, "a")
        batch = make_batch(advantages=(0.02, -0.02))
        before = [logprob(policies["a"], row) for row in batch.rows]
        references = load(tiny_checkpoint, "a") if kl_coef else None
        learner = Learner(
            policies,
            preset("srpo", kl_coef=kl_coef),
            OptimConfig(lr=3e-4, num_epochs=30),
            num_steps=1,
            references=references,
        )
        assert math.isfinite(learner.update(batch, step=0, seed=0)["train/loss"])
        after = [logprob(policies["a"], row) for row in batch.rows]
        return sum(abs(new - old) for new, old in zip(after, before, strict=True))

    assert drift(kl_coef=1.0) < 0.5 * drift(kl_coef=0.0)


def test_every_metric_is_in_the_table(tiny_checkpoint):
    policies = load(tiny_checkpoint, "a", "b")
    for name in make_learner(policies, num_minibatches=2).update(make_batch((("a", "b"), ("b",))), step=0, seed=0):
        check_name(name)


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
def test_learning_rate_schedules(schedule, step, factor):
    config = OptimConfig(schedule=schedule, warmup_steps=2)
    assert schedule_factor(config, step, num_steps=10) == pytest.approx(factor, abs=1e-6)
