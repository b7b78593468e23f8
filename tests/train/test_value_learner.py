"""Training of the critic: values of events, exact gradients at any pass size, state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from srpo_envs.errors import NonFiniteError
from srpo_train.batching import EventBatch, MemberRow
from srpo_train.config import OptimConfig
from srpo_train.metrics import check_name
from srpo_train.objective import value_loss
from srpo_train.policies.critic import Critic
from srpo_train.value_learner import ValueLearner

# Prompts of each event's members.
EVENTS = [[(3, 4), (5, 6, 7), (8,)], [(9, 10, 11, 12)], [(4, 4), (13, 14)], [(15,)]]
TARGETS = (1.0, 0.0, 0.5, -1.0)


def make_batch(value_E=None) -> EventBatch:
    rows = [
        MemberRow(event_index=event, member_index=member, policy_id="ab"[event % 2], prompt_ids=ids, token_ids=(1, 2))
        for event, prompts in enumerate(EVENTS)
        for member, ids in enumerate(prompts)
    ]
    return EventBatch(
        rows=rows,
        cardinality_E=torch.tensor([len(prompts) for prompts in EVENTS]),
        value_E=torch.zeros(4, dtype=torch.float64) if value_E is None else value_E,
        value_target_E=torch.tensor(TARGETS, dtype=torch.float64),
    )


def make_learner(source, *, value_clip=math.inf, critic=(), **optim) -> ValueLearner:
    config = OptimConfig(**({"lr": 1e-2} | optim))
    return ValueLearner(Critic.load(source, device="cpu", **dict(critic)), config, value_clip=value_clip, num_steps=10)


def with_values(learner: ValueLearner) -> EventBatch:
    return make_batch(learner.values(make_batch()))


def test_the_value_of_an_event_is_the_mean_over_its_members(tiny_checkpoint):
    learner = make_learner(tiny_checkpoint)
    learner.update(make_batch(), step=0, seed=0)
    rows = make_batch().rows
    with torch.no_grad():
        by_row = learner.critic(rows).double()
    expected = [by_row[:3].mean(), by_row[3], by_row[4:6].mean(), by_row[6]]
    assert learner.values(make_batch()).tolist() == pytest.approx([float(v) for v in expected], abs=1e-6)
    assert any(abs(v) > 1e-3 for v in expected)


def test_gradients_are_in_memory_during_updates_only(tiny_checkpoint):
    learner = make_learner(tiny_checkpoint)
    metrics = learner.update(make_batch(), step=0, seed=0)
    assert metrics["train/value_grad_norm"] > 0
    assert all(parameter.grad is None for parameter in learner.critic.parameters)


@pytest.mark.parametrize("micro_batch_tokens", [1, 5, 1000])
def test_the_gradient_is_that_of_the_whole_loss_at_any_pass_size(tiny_checkpoint, micro_batch_tokens):
    learner = make_learner(
        tiny_checkpoint, value_clip=0.3, micro_batch_tokens=micro_batch_tokens, max_grad_norm=1e9, num_epochs=2
    )
    learner.update(make_batch(), step=0, seed=0)  # away from the head of 0
    batch = make_batch(torch.tensor([0.9, -0.9, 0.4, 0.0], dtype=torch.float64))
    learner._optimizer.zero_grad()
    value_E = learner.values(batch).requires_grad_()
    loss = value_loss(value_E, batch.value_E, batch.value_target_E, value_clip=0.3)
    learner._backpropagate(batch, torch.autograd.grad(loss, value_E)[0])
    ours = [parameter.grad.clone() for parameter in learner.critic.parameters]

    learner._optimizer.zero_grad()
    by_row = learner.critic(batch.rows).double()
    value_E = torch.stack([part.mean() for part in torch.split(by_row, [3, 1, 2, 1])])
    value_loss(value_E, batch.value_E, batch.value_target_E, value_clip=0.3).backward()
    for mine, parameter in zip(ours, learner.critic.parameters, strict=True):
        assert torch.allclose(mine, parameter.grad, rtol=1e-4, atol=1e-7)


def test_values_move_to_their_targets(tiny_checkpoint):
    learner = make_learner(tiny_checkpoint, num_minibatches=2, num_epochs=2)
    reports = [learner.update(with_values(learner), step=step, seed=step) for step in range(25)]
    assert reports[0]["train/value_loss"] == pytest.approx((1 + 0 + 0.25 + 1) / 8, rel=0.5)
    assert reports[-1]["train/value_loss"] < 0.02
    assert reports[-1]["train/value_explained_variance"] > 0.9
    assert learner.values(make_batch()).tolist() == pytest.approx(TARGETS, abs=0.3)
    for name in reports[0]:
        check_name(name)


def test_a_value_that_has_moved_by_the_clip_towards_its_target_moves_no_further(tiny_checkpoint):
    # One event with target 1. The first step moves its value up by more than 1e-9, so the second has no gradient.
    def train(num_epochs, value_clip):
        learner = make_learner(tiny_checkpoint, num_epochs=num_epochs, value_clip=value_clip)
        report = learner.update(make_batch().select([0]), step=0, seed=0)
        return float(learner.values(make_batch())[0]), report["train/value_clip_fraction"]

    once, held, free = train(1, 1e-9), train(2, 1e-9), train(2, math.inf)
    assert 0.0 < once[0] == held[0] < free[0]
    assert (once[1], held[1], free[1]) == (0.0, 0.5, 0.0)


def test_responses_are_not_seen(tiny_checkpoint):
    learner = make_learner(tiny_checkpoint)
    learner.update(make_batch(), step=0, seed=0)
    batch = make_batch()
    other = replace(batch, rows=[replace(row, token_ids=(20, 21, 22)) for row in batch.rows])
    assert torch.equal(learner.values(batch), learner.values(other))


def test_recomputed_activations_change_nothing(tiny_checkpoint):
    outcomes = []
    for is_recomputed in (False, True):
        learner = make_learner(tiny_checkpoint, critic={"gradient_checkpointing": is_recomputed}, num_epochs=2)
        learner.update(make_batch(), step=0, seed=0)
        outcomes.append(learner.values(make_batch()))
    assert torch.equal(*outcomes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_critic_goes_on_as_if_it_had_never_stopped(tiny_checkpoint, tmp_path, dtype):
    def run(stops):
        settings = {"critic": {"dtype": dtype}, "num_minibatches": 2, "schedule": "linear"}
        learner = make_learner(tiny_checkpoint, **settings)
        for step in range(4):
            if step in stops:
                learner.critic.save(tmp_path / "critic")
                torch.save(learner.state_dict(), tmp_path / "state.pt")
                learner = make_learner(tmp_path / "critic", **settings)
                learner.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            learner.update(with_values(learner), step=step, seed=step)
        return torch.cat([parameter.detach().flatten() for parameter in learner.critic.parameters])

    assert torch.equal(run(stops=()), run(stops=(1, 3)))


def test_steps_that_are_not_finite_are_skipped_and_end_the_run_when_they_go_on(tiny_checkpoint):
    learner = make_learner(tiny_checkpoint, max_nonfinite_steps=1)
    before = [parameter.detach().clone() for parameter in learner.critic.parameters]
    bad = replace(make_batch(), value_target_E=torch.tensor([math.nan, 0.0, 0.0, 0.0]))
    learner.update(bad, step=0, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.critic.parameters, strict=True))
    with pytest.raises(NonFiniteError, match="2 optimiser steps in a row of the critic"):
        learner.update(bad, step=1, seed=0)
