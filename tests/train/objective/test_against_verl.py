"""The same tensors through verl's `core_algos`: advantages, losses and their gradients agree to 1e-5."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from srpo_train.objective import (
    AdvantageSpec,
    CreditTable,
    LossTensors,
    estimate_advantage,
    objective_value,
    preset,
    value_loss,
)

pytestmark = pytest.mark.filterwarnings("default")  # verl's own imports warn


@pytest.fixture(scope="module")
def verl():
    """verl's algorithms; its package imports ray, tensordict and hydra."""
    return pytest.importorskip(
        "verl.trainer.ppo.core_algos", reason="verl is not installed with what it imports", exc_type=ImportError
    )


RETURNS = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.25, 0.9, 0.3])
PROMPTS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("grpo", "compute_grpo_outcome_advantage"),
        ("gspo", "compute_grpo_outcome_advantage"),
        ("dapo", "compute_grpo_outcome_advantage"),
        ("dr_mas", "compute_grpo_outcome_advantage"),  # one agent: a prompt's rows are one group
        ("rloo", "compute_rloo_outcome_advantage"),
    ],
)
def test_group_advantages_equal_verl(verl, name, function):
    table = CreditTable(
        return_E=RETURNS,
        group_E=PROMPTS,
        event_of_row_M=torch.arange(9),
        episode_E=torch.arange(9),
        agent_M=torch.zeros(9, dtype=torch.int64),
    )
    rewards_MT, mask_MT = torch.zeros(9, 3), torch.ones(9, 3)
    rewards_MT[:, 2] = RETURNS
    theirs, _ = getattr(verl, function)(rewards_MT, mask_MT, PROMPTS.numpy().astype(object))
    ours = estimate_advantage(table, preset(name).advantage).value
    assert ours.tolist() == pytest.approx(theirs[:, 0].tolist(), abs=1e-5)


def test_a_group_of_one_of_dr_mas_equals_verl(verl):
    theirs, _ = verl.compute_grpo_outcome_advantage(torch.tensor([[0.7]]), torch.ones(1, 1), np.array(["a"], object))
    table = CreditTable(
        return_E=torch.tensor([0.7]), group_E=torch.zeros(1, dtype=torch.int64), event_of_row_M=torch.zeros(1).long()
    )
    spec = AdvantageSpec(estimator="row_relative", group_key=("group",), singleton="raw")
    assert estimate_advantage(table, spec).value.item() == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (1.0, 0.0)])
def test_ppo_s_advantages_and_targets_equal_verl(verl, gamma, gae_lambda):
    # Two episodes of four steps: verl's tokens are our events.
    generator = torch.Generator().manual_seed(0)
    rewards_NT, values_NT = torch.randn(2, 2, 4, generator=generator)
    theirs, targets_NT = verl.compute_gae_advantage_return(
        rewards_NT, values_NT, torch.ones(2, 4), torch.tensor(gamma), torch.tensor(gae_lambda)
    )
    returns_NT = rewards_NT.flip(1).cumsum(1).flip(1)
    table = CreditTable(
        return_E=returns_NT.flatten().double(),
        group_E=torch.zeros(8, dtype=torch.int64),
        event_of_row_M=torch.arange(8),
        episode_E=torch.arange(2).repeat_interleave(4),
        step_E=torch.arange(4).repeat(2),
        value_E=values_NT.flatten().double(),
    )
    ours = estimate_advantage(table, preset("ppo", gamma=gamma, gae_lambda=gae_lambda).advantage)
    assert ours.value_target_E.tolist() == pytest.approx(targets_NT.flatten().tolist(), abs=1e-5)
    assert ours.value.tolist() == pytest.approx(theirs.flatten().tolist(), abs=1e-5)


def test_the_value_loss_equals_verl(verl):
    generator = torch.Generator().manual_seed(1)
    value_E, old_E, target_E = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    losses, slopes = [], []
    for function in (
        lambda value_E: value_loss(value_E, old_E, target_E, value_clip=0.2),
        lambda value_E: verl.compute_value_loss(value_E[None], target_E[None], old_E[None], torch.ones(1, 40), 0.2)[0],
    ):
        leaf = value_E.clone().requires_grad_()
        loss = function(leaf)
        losses.append(loss.item())
        slopes.append(torch.autograd.grad(loss, leaf)[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert torch.allclose(slopes[0], slopes[1], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["grpo", "dr_mas", "gspo"])
def test_policy_losses_equal_verl(verl, name):
    actor = pytest.importorskip("verl.workers.config", exc_type=ImportError).ActorConfig
    objective = preset(name)
    generator = torch.Generator().manual_seed(2)
    spread = 0.001 if name == "gspo" else 0.8
    old_MT = -3 * torch.rand(6, 5, generator=generator, dtype=torch.float64)
    rows = LossTensors(
        current_MT=(old_MT + spread * torch.randn(6, 5, generator=generator, dtype=torch.float64)).requires_grad_(),
        old_MT=old_MT,
        token_mask_MT=torch.arange(5) < torch.tensor([5, 1, 3, 2, 4, 5])[:, None],
        event_of_row_M=torch.arange(6),
        cardinality_E=torch.ones(6, dtype=torch.int64),
        advantage_E=torch.tensor([1.2, -0.7, 0.3, -1.4, 0.5, -0.6], dtype=torch.float64),
    )
    config = actor(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=objective.clip_low,
        clip_ratio_high=objective.clip_high,
        clip_ratio_c=objective.dual_clip or 3.0,
    )
    function = verl.compute_policy_loss_gspo if name == "gspo" else verl.compute_policy_loss_vanilla
    theirs_MT = rows.current_MT.detach().clone().requires_grad_()
    mode = "seq-mean-token-mean" if name == "gspo" else "token-mean"
    advantage_MT = rows.advantage_E[:, None].expand(6, 5)
    mask_MT = rows.token_mask_MT.double()
    theirs, _ = function(old_MT, theirs_MT, advantage_MT, mask_MT, loss_agg_mode=mode, config=config)
    ours = -objective_value(objective, rows)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    (our_slope,), (their_slope,) = torch.autograd.grad(ours, rows.current_MT), torch.autograd.grad(theirs, theirs_MT)
    assert torch.allclose(our_slope, their_slope, rtol=1e-5, atol=1e-9)
