"""The learner: optimiser steps on whole events, skipped steps, schedules, state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from srpo_envs.errors import ConfigError, NonFiniteError
from srpo_train import learner as learner_module
from srpo_train.batching import EventBatch, MemberRow
from srpo_train.config import AdapterConfig, OptimConfig
from srpo_train.learner import Learner, PolicySettings
from srpo_train.metrics import check_name
from srpo_train.objective import Clip, preset
from srpo_train.policies import Policy
from srpo_train.policies.logprobs import ModelScorer
from srpo_train.policies.shared_base import Bases

# (policy of each member row) by event; event 0 is rewarded, event 1 is not.
SHARED = (("a", "a"), ("a",))
FROM_THE_ENGINE = (
    "train/engine_gap",
    "train/engine_gap_max",
    "train/engine_event_gap",
    "train/engine_clip_share",
    "train/entropy",
)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_in_memory_during_updates_only(tiny_checkpoint, dtype):
    policy = load(tiny_checkpoint, "a")["a"]
    policy.model.to(dtype)
    learner = make_learner({"a": policy})
    learner.update(make_batch(), step=0, seed=0)
    held = [*policy.model.parameters(), *learner._optimizers["a"]._weights]
    assert all(weight.grad is None for weight in held)


def test_an_update_that_breaks_off_leaves_no_gradients(tiny_checkpoint, monkeypatch):
    policies = load(tiny_checkpoint, "a")
    learner = make_learner(policies)

    def fail(learning_rate):
        assert any(parameter.grad is not None for parameter in policies["a"].model.parameters())
        raise RuntimeError("out of memory")

    monkeypatch.setattr(learner._optimizers["a"], "step", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        learner.update(make_batch(), step=0, seed=0)
    assert all(parameter.grad is None for parameter in policies["a"].model.parameters())


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


def sampled_by_an_engine(policies, batch, differences):
    """Give each row the log-probabilities of an engine from which the trainer's differ by the row's number a token."""
    with torch.no_grad():
        scored_MT = ModelScorer(model=policies["a"].model)(batch.rows).logprobs_MT
    rows = [
        replace(row, old_logprobs=(line - difference).tolist())
        for row, line, difference in zip(batch.rows, scored_MT, differences, strict=True)
    ]
    return replace(batch, rows=rows)


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_the_mismatch_of_the_engine_is_measured_by_token_and_by_event(tiny_checkpoint, num_epochs):
    policies = load(tiny_checkpoint, "a")
    # Rows of three tokens. Event 0: members 0.1 and 0.2 a token, (0.3 + 0.6) / sqrt 2 = 0.636, ratio 1.89, outside.
    # Event 1: one member, -0.05 a token, -0.15, ratio 0.861, inside. Tokens: (0.1 + 0.2 + 0.05) / 3.
    batch = sampled_by_an_engine(policies, make_batch(), (0.1, 0.2, -0.05))
    metrics = make_learner(policies, num_epochs=num_epochs).update(batch, step=0, seed=0)
    assert metrics["train/engine_gap"] == pytest.approx(0.35 / 3, rel=1e-4)
    assert metrics["train/engine_gap_max"] == pytest.approx(0.2, rel=1e-4)
    assert metrics["train/engine_event_gap"] == pytest.approx((0.9 / math.sqrt(2) + 0.15) / 2, rel=1e-4)
    assert metrics["train/engine_clip_share"] == 0.5


@pytest.mark.parametrize("level", ["token", "member", "event"])
def test_a_correction_scales_the_gradient_of_the_only_mini_batch(tiny_checkpoint, level):
    # One event, one member, three tokens of difference 0.1: the weight of each is e^0.1, e^0.3 or e^0.3.
    def norm(difference, **fields):
        policies = load(tiny_checkpoint, "a")
        batch = sampled_by_an_engine(policies, make_batch((("a",),), (1.0,)), (difference,))
        metrics = make_learner(policies, objective=preset("srpo", **fields)).update(batch, step=0, seed=0)
        assert metrics["train/ratio_min"] == metrics["train/ratio_max"] == 1.0
        return metrics["train/grad_norm"]

    weight = math.exp(0.1 if level == "token" else 0.3)
    assert norm(0.1, correction=level) == pytest.approx(norm(0.1) * weight, rel=1e-4)
    assert norm(0.1, correction=level, correction_cap=1.05) == pytest.approx(norm(0.1) * 1.05, rel=1e-4)
    assert norm(0.0, correction=level) == pytest.approx(norm(0.0), rel=1e-4)


def test_the_share_of_weights_at_the_cap_is_told_where_there_is_a_correction(tiny_checkpoint):
    # Differences a token of 0.1, 0.2 and -0.05 in rows of three tokens, cap e^0.15: one row of three is at the cap.
    policies = load(tiny_checkpoint, "a")
    batch = sampled_by_an_engine(policies, make_batch(), (0.1, 0.2, -0.05))
    objective = preset("srpo", correction="token", correction_cap=math.exp(0.15))
    metrics = make_learner(policies, objective=objective).update(batch, step=0, seed=0)
    check_name("train/correction_cap_share")
    assert metrics["train/correction_cap_share"] == pytest.approx(1 / 3)
    assert "train/correction_cap_share" not in make_learner(policies).update(batch, step=0, seed=0)


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


# --- several policies ---------------------------------------------------------------------------------------------


def load_adapters(source, *policy_ids, **options):
    """Policies that are an adapter each over one base; stored ones are loaded from ``source / policy_id``."""
    pytest.importorskip("peft")
    bases = Bases()
    options = {"adapter": AdapterConfig(rank=4, alpha=8.0)} | options
    return {policy_id: Policy.load(policy_id, source, device="cpu", bases=bases, **options) for policy_id in policy_ids}


def own_weights(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.trainable_parameters]).clone()


def test_a_frozen_policy_plays_is_scored_and_stays_as_it_is(tiny_checkpoint):
    frozen = Policy.load("b", tiny_checkpoint, device="cpu", trainable=False)
    policies = load(tiny_checkpoint, "a") | {"b": frozen}
    before = weights(frozen)
    learner = make_learner(policies, num_epochs=2)
    metrics = learner.update(make_batch((("a", "b"), ("b",))), step=0, seed=0)
    assert torch.equal(weights(frozen), before)
    assert all(parameter.grad is None for parameter in frozen.model.parameters())
    assert set(learner.state_dict()["optimizers"]) == {"a"}
    # Both events count, the one that only the frozen policy acts in too; its ratio stays 1.
    assert metrics["train/num_events"] == 2
    assert metrics["train/num_rows"] == 3
    assert metrics["train/ratio_min"] == 1.0
    assert metrics["train/ratio_max"] > 1.0
    assert metrics["train/grad_norm"] > 0.0


def test_each_policy_follows_its_own_optimiser_settings(tiny_checkpoint):
    policies = load(tiny_checkpoint, "a", "b")
    before = {policy_id: weights(policy) for policy_id, policy in policies.items()}
    config = OptimConfig(lr=1e-3)
    own = PolicySettings(optim=OptimConfig(lr=1e-5, schedule="linear", max_grad_norm=1e-3))
    learner = Learner(policies, preset("srpo"), config, num_steps=10, settings={"b": own})
    metrics = learner.update(make_batch((("a", "b"), ("b",))), step=5, seed=0)
    # The first step of Adam moves a weight by the learning rate, whatever the gradient: 1e-3, and half of 1e-5.
    moved = {
        policy_id: float((weights(policy) - before[policy_id]).abs().max()) for policy_id, policy in policies.items()
    }
    assert moved["a"] == pytest.approx(1e-3, rel=1e-2)
    assert moved["b"] == pytest.approx(5e-6, rel=5e-2)
    assert (metrics["train/lr"], metrics["train/lr/a"], metrics["train/lr/b"]) == (1e-3, 1e-3, 5e-6)
    for name in metrics:
        check_name(name)


def test_each_policy_is_scored_at_its_own_temperature(tiny_checkpoint):
    policies = load(tiny_checkpoint, "a", "b")
    batch = make_batch((("a",), ("b",)))
    with torch.no_grad():
        wanted = [
            ModelScorer(model=policies[row.policy_id].model, temperature=temperature)([row]).logprobs_MT[0].tolist()
            for row, temperature in zip(batch.rows, (1.0, 0.5), strict=True)
        ]
    batch = replace(batch, rows=[replace(row, old_logprobs=w) for row, w in zip(batch.rows, wanted, strict=True)])
    config = OptimConfig(lr=1e-3)
    own = {"b": PolicySettings(optim=config, temperature=0.5)}
    metrics = Learner(policies, preset("srpo"), config, num_steps=10, settings=own).update(batch, step=0, seed=0)
    assert metrics["train/engine_gap"] < 1e-5


def test_each_policy_s_clip_holds_in_events_of_its_own(tiny_checkpoint):
    config = OptimConfig(lr=1e-2, num_epochs=3)
    tight = {"b": PolicySettings(optim=config, clip=Clip.of(preset("srpo", clip_low=1e-9, clip_high=1e-9)))}

    def clipped(members, settings):
        objective = preset("srpo", clip_low=1.0, clip_high=1e9)
        learner = Learner(load(tiny_checkpoint, "a", "b"), objective, config, num_steps=10, settings=settings)
        return learner.update(make_batch(members), step=0, seed=0)["train/clip_fraction"]

    assert clipped((("a", "a"), ("b",)), {}) == 0.0
    assert clipped((("a", "a"), ("b",)), tight) == pytest.approx((0 + 0.5 + 0.5) / 3)  # one of two events
    with pytest.raises(ConfigError, match="event 'e0': its members' policies"):
        clipped((("a", "b"), ("b",)), tight)


def test_adapters_over_one_base_train_apart_and_leave_it_alone(tiny_checkpoint):
    policies = load_adapters(tiny_checkpoint, "a", "b")
    base = policies["a"].share.base
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    start = {policy_id: own_weights(policy) for policy_id, policy in policies.items()}
    batch = make_batch((("a", "b"), ("b",)))

    def scores():
        with torch.no_grad():
            return [float(policies[row.policy_id].scorer()([row]).logprobs_MT.sum()) for row in batch.rows]

    earlier = scores()
    learner = make_learner(policies, lr=1e-2)
    for step in range(3):
        learner.update(batch, step=step, seed=0)
    later = scores()
    assert later[0] + later[1] > earlier[0] + earlier[1]
    assert later[2] < earlier[2]
    for policy_id, policy in policies.items():
        assert not torch.equal(own_weights(policy), start[policy_id])
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())


def test_adapters_over_one_base_learn_what_they_learn_on_bases_of_their_own(tiny_checkpoint):
    def train(policies):
        learner = make_learner(policies, num_minibatches=2, num_epochs=2)
        for step in range(2):
            learner.update(make_batch((("a", "b"), ("b",), ("a",)), (1.0, -1.0, 0.5)), step=step, seed=step)
        return [own_weights(policy) for policy in policies.values()]

    together = train(load_adapters(tiny_checkpoint, "a", "b"))
    apart = train(load_adapters(tiny_checkpoint, "a") | load_adapters(tiny_checkpoint, "b"))
    for ours, theirs in zip(together, apart, strict=True):
        assert torch.equal(ours, theirs)


def test_the_reference_of_an_adapter_is_its_base(tiny_checkpoint):
    policies = load_adapters(tiny_checkpoint, "a")
    share = policies["a"].share
    reference = Policy(
        policy_id="a", model=share.base.model, tokenizer=policies["a"].tokenizer, share=share.base.alone()
    )
    plain = load(tiny_checkpoint, "a")["a"]

    def train(references):
        policies = load_adapters(tiny_checkpoint, "a")
        config = OptimConfig(lr=1e-2, num_epochs=3)
        learner = Learner(policies, preset("srpo", kl_coef=0.5), config, num_steps=1, references=references)
        loss = learner.update(make_batch(), step=0, seed=0)["train/loss"]
        return loss, own_weights(policies["a"])

    (loss, ours), (expected, theirs) = train({"a": reference}), train({"a": plain})
    assert loss == expected
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_restored_adapters_go_on_as_if_they_had_never_stopped(tiny_checkpoint, tmp_path, dtype):
    def run(stops):
        policies = load_adapters(tiny_checkpoint, "a", "b", dtype=dtype)
        learner = make_learner(policies, num_minibatches=2)
        for step in range(4):
            if step in stops:
                for policy in policies.values():
                    policy.save(tmp_path / policy.policy_id)
                torch.save(learner.state_dict(), tmp_path / "state.pt")
                bases = Bases()
                policies = {
                    policy_id: Policy.load(
                        policy_id, tmp_path / policy_id, base=tiny_checkpoint, device="cpu", dtype=dtype, bases=bases
                    )
                    for policy_id in policies
                }
                learner = make_learner(policies, num_minibatches=2)
                learner.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            learner.update(make_batch((("a", "b"), ("b",))), step=step, seed=step)
        return torch.cat([own_weights(policy) for policy in policies.values()])

    assert torch.equal(run(stops=()), run(stops=(1, 3)))
