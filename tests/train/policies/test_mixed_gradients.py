"""The gradient of events whose members are a full model, adapters over one base, and a frozen model: exact, float64."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from srpo_train.batching import EventBatch, MemberRow
from srpo_train.config import AdapterConfig
from srpo_train.objective import Clip, objective_value, preset
from srpo_train.policies import Policy
from srpo_train.policies.shared_base import SharedBase
from srpo_train.set_gradient import accumulate_set_gradient, loss_tensors, score_rows, with_logprobs

pytest.importorskip("peft")

CARDINALITIES = [4, 1, 3, 2, 4]


def build_team(tiny_checkpoint, checkpointing):
    """router: a full model; solver and verifier: adapters over one base; judge: that base, frozen."""

    def plain(policy_id):
        policy = Policy.load(policy_id, tiny_checkpoint, device="cpu")
        policy.model.double()
        return policy

    source = plain("base")
    base = SharedBase(source.model, source.tokenizer)
    if checkpointing:
        base.recompute_activations()
    settings = AdapterConfig(rank=4, alpha=8.0)
    shares = {
        "solver": base.new_adapter("solver", settings, 0),
        "verifier": base.new_adapter("verifier", settings, 0),
        "judge": base.alone(),
    }
    policies = {"router": plain("router")}
    for policy_id, share in shares.items():
        policies[policy_id] = Policy(
            policy_id=policy_id,
            model=base.model,
            tokenizer=source.tokenizer,
            share=share,
            is_trainable=share.name is not None,
        )
    return policies


def make_rows(policy_ids):
    rng = random.Random(3)
    rows = [
        MemberRow(
            event_index=event,
            member_index=member,
            policy_id=policy_ids[(event + member) % len(policy_ids)],
            prompt_ids=[rng.randrange(46) for _ in range(rng.randrange(1, 6))],
            token_ids=[rng.randrange(46) for _ in range(rng.randrange(1, 6))],
        )
        for event, cardinality in enumerate(CARDINALITIES)
        for member in range(cardinality)
    ]
    rng.shuffle(rows)
    return rows


class Case:
    """A mini-batch scored by a team, which then moves, so that ratios differ from 1 and some events are clipped."""

    def __init__(self, tiny_checkpoint, checkpointing):
        self.policies = build_team(tiny_checkpoint, checkpointing)
        self.scorers = {name: policy.scorer(with_entropy=True) for name, policy in self.policies.items()}
        advantage_E = torch.tensor([1.0, -0.7, 0.4, -1.2, 0.9])
        batch = EventBatch(
            rows=make_rows(list(self.policies)), cardinality_E=torch.tensor(CARDINALITIES), advantage_E=advantage_E
        )
        self.move(0.02, seed=1)
        batch = with_logprobs(batch, self.scorers, max_tokens=1000)
        references = {name: self.policies["judge"].scorer() for name in self.policies}
        batch = with_logprobs(batch, references, max_tokens=1000, name="reference_logprobs")
        self.move(0.02, seed=2)
        self.batch = batch

    @property
    def parameters(self):
        return [parameter for policy in self.policies.values() for parameter in policy.trainable_parameters]

    def move(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def take_gradient(self):
        gradient = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        for parameter in self.parameters:
            parameter.grad = None
        return gradient

    def autograd(self, objective):
        """Every row scored alone, one graph through all policies, one backward pass."""
        rows = self.batch.rows
        width = max(len(row.token_ids) for row in rows)
        scored = [self.scorers[row.policy_id]([row]) for row in rows]

        def stack(name):
            lines = [getattr(score, name)[0] for score in scored]
            return torch.stack([torch.nn.functional.pad(line, (0, width - len(line))) for line in lines])

        tensors = loss_tensors(objective, self.batch, score_rows(rows, self.scorers, [[0]]))
        entropy_MT = stack("entropy_MT") if objective.entropy_coef else None
        tensors = replace(tensors, current_MT=stack("logprobs_MT"), entropy_MT=entropy_MT)
        value = objective_value(objective, tensors)
        (-value).backward()
        return value.item(), self.take_gradient()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checkpointing"])
def case(request, tiny_checkpoint):
    return Case(tiny_checkpoint, request.param)


@pytest.mark.parametrize("name", ["srpo", "dr_mas"])
@pytest.mark.parametrize("extras", [{}, {"kl_coef": 0.3, "entropy_coef": 0.02}], ids=["plain", "kl and entropy"])
@pytest.mark.parametrize("max_tokens", [7, 1000])
def test_gradient_equals_autograd_through_the_whole_objective(case, name, extras, max_tokens):
    objective = preset(name, **extras)
    value, expected = case.autograd(objective)
    result = accumulate_set_gradient(objective, case.batch, case.scorers, max_tokens=max_tokens, frozen={"judge"})
    actual = case.take_gradient()
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-10
    assert result.value == pytest.approx(value, rel=1e-10)


def test_the_case_clips_some_events_and_trains_each_policy(case):
    """The equality above is worth something only where gates differ and every policy has a gradient."""
    result = accumulate_set_gradient(preset("srpo"), case.batch, case.scorers, max_tokens=1000, frozen={"judge"})
    assert 0.0 < result.diagnostics["clip_fraction"] < 1.0
    norms = {
        name: sum(float(parameter.grad.norm()) for parameter in policy.trainable_parameters)
        for name, policy in case.policies.items()
    }
    case.take_gradient()
    assert norms.pop("judge") == 0.0
    assert min(norms.values()) > 0.0


def test_a_frozen_member_counts_in_its_event_and_is_not_back_propagated(case):
    rows = case.batch.rows
    result = accumulate_set_gradient(
        preset("srpo"), case.batch, case.scorers, max_tokens=1000, frozen={"judge"}, on_policy=True
    )
    case.take_gradient()
    assert result.num_rows_trained == sum(row.policy_id != "judge" for row in rows) < len(rows)
    # Without its frozen members an event would have a smaller K, and so another ratio.
    assert result.diagnostics["num_rows"] == len(rows)
    assert result.diagnostics["cardinality_mean"] == sum(CARDINALITIES) / len(CARDINALITIES)


def test_a_wider_clip_of_policies_that_act_alone_opens_their_events_only(tiny_checkpoint):
    case = Case(tiny_checkpoint, checkpointing=False)
    rows = [replace(row, policy_id="solver" if row.event_index < 3 else "verifier") for row in case.batch.rows]
    batch = with_logprobs(replace(case.batch, rows=rows), case.scorers, max_tokens=1000)
    case.move(0.05, seed=4)
    objective = preset("srpo", clip_low=1e-6, clip_high=1e-6)
    wide = Clip.of(preset("srpo", clip_low=0.999, clip_high=1e6))

    def norms(**settings):
        accumulate_set_gradient(objective, batch, case.scorers, max_tokens=1000, **settings)
        found = {}
        for name in ("solver", "verifier"):
            gradients = [p.grad for p in case.policies[name].trainable_parameters if p.grad is not None]
            found[name] = sum(float(gradient.norm()) for gradient in gradients)
            for parameter in case.policies[name].trainable_parameters:
                parameter.grad = None
        return found

    narrow, opened = norms(), norms(clips={"verifier": wide})
    assert opened["solver"] == narrow["solver"]
    assert opened["verifier"] > narrow["verifier"] >= 0.0
