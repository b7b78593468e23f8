"""The engine with a copy: what it is given later it samples with, and nothing the trainer does reaches it before."""

from __future__ import annotations

import pytest
import torch

from srpo_envs.errors import EngineError
from srpo_train.config import AdapterConfig
from srpo_train.engines.base import GenerationRequest, Sampling
from srpo_train.engines.copied import CopiedEngine
from srpo_train.engines.publishing import PublishingEngine, weights_of
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies import Policy
from srpo_train.policies.shared_base import Bases

REQUESTS = [
    GenerationRequest(request_id=str(seed), prompt="Compute 3+4.", max_new_tokens=12, seed=seed) for seed in range(4)
]


def load(kind: str) -> Policy:
    adapter = AdapterConfig(rank=4, alpha=8.0) if kind == "adapter" else None
    return Policy.load("team", "builtin:tiny-team", device="cpu", adapter=adapter, bases=Bases())


def answers(engine):
    return [(item.token_ids, item.policy_version) for item in engine.generate(REQUESTS, Sampling())]


@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_new_weights_are_seen_when_they_are_published_and_not_before(kind):
    if kind == "adapter":
        pytest.importorskip("peft")
    policy, engine = load(kind), CopiedEngine(load(kind))
    assert isinstance(engine, PublishingEngine)
    before = answers(engine)
    assert before == answers(TransformersEngine(policy))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable_parameters:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    policy.version = 1
    assert answers(engine) == before
    engine.publish(1, weights_of(policy))
    assert answers(engine) == answers(TransformersEngine(policy)) != before
    assert engine.published_version == 1


def test_a_part_of_the_weights_is_refused_and_the_old_ones_go_on():
    policy, engine = load("model"), CopiedEngine(load("model"))
    before = answers(engine)
    with pytest.raises(EngineError, match="missing"):
        engine.publish(1, list(weights_of(policy))[1:])
    assert answers(engine) == before
