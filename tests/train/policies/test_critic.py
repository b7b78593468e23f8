"""The critic: a value of a prompt, from a policy's checkpoint and back from its own."""

from __future__ import annotations

import pytest
import torch
from small_models import build_model, build_tokenizer

from srpo_envs.errors import ConfigError, PolicyLoadError
from srpo_train.batching import MemberRow
from srpo_train.policies import Policy
from srpo_train.policies.critic import Critic


def row(*prompt_ids: int) -> MemberRow:
    return MemberRow(event_index=0, member_index=0, policy_id="", prompt_ids=prompt_ids, token_ids=())


@torch.no_grad()
def moved(critic: Critic) -> Critic:
    """A critic whose head is not 0."""
    generator = torch.Generator().manual_seed(3)
    for parameter in critic.parameters:
        if len(parameter) == 1:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return critic


def test_a_new_critic_says_0_and_takes_the_policy_s_body(tiny_checkpoint, tiny_policy):
    critic = Critic.load(tiny_checkpoint, device="cpu")
    assert critic([row(3, 4, 5), row(6)]).tolist() == [0.0, 0.0]
    body = tiny_policy.model.model.state_dict()
    ours = critic.model.state_dict()
    assert all(torch.equal(ours[f"model.{name}"], tensor) for name, tensor in body.items())
    # The body's parameters, and a head of 32 weights and a bias.
    assert sum(p.numel() for p in critic.parameters) == sum(t.numel() for t in tiny_policy.model.parameters()) + 33


def test_loading_draws_no_random_number(tiny_checkpoint):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    critic = Critic.load(tiny_checkpoint, device="cpu")
    assert torch.equal(torch.rand(1), expected)
    assert not any(module.p for module in critic.model.modules() if isinstance(module, torch.nn.Dropout))


def test_the_value_is_read_at_the_last_token_of_a_prompt_whatever_the_padding(tiny_checkpoint):
    critic = moved(Critic.load(tiny_checkpoint, device="cpu"))
    rows = [row(3, 4, 5), row(6), row(3, 4, 5, 7, 8)]
    together = critic(rows)
    alone = torch.cat([critic([each]) for each in rows])
    assert torch.allclose(together, alone, atol=1e-5)
    logits = critic.model(input_ids=torch.tensor([[3, 4, 5]])).logits
    assert together[0].item() == pytest.approx(logits[0, -1, 0].item(), abs=1e-5)
    assert len(set(together.tolist())) == 3


def test_a_saved_critic_comes_back_as_it_was(tiny_checkpoint, tmp_path):
    critic = moved(Critic.load(tiny_checkpoint, device="cpu"))
    critic.save(tmp_path)
    again = Critic.load(tmp_path, device="cpu")
    assert torch.equal(again([row(3, 4, 5)]), critic([row(3, 4, 5)]))
    from transformers import AutoModelForTokenClassification

    assert AutoModelForTokenClassification.from_pretrained(tmp_path).config.num_labels == 1


def test_a_damaged_checkpoint_is_refused_instead_of_filled_with_random_numbers(tiny_checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    Critic.load(tiny_checkpoint, device="cpu").save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyLoadError, match=r"lacks the weight 'model\.layers\.0\.mlp\.up_proj\.weight'"):
        Critic.load(tmp_path, device="cpu")


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PolicyLoadError, match="critic"):
        Critic.load(tmp_path, device="cpu")


def test_an_adapter_s_critic_is_made_of_its_base(tiny_checkpoint, tmp_path):
    pytest.importorskip("peft")
    from srpo_train.config import AdapterConfig

    Policy.load("a", tiny_checkpoint, adapter=AdapterConfig(rank=2), device="cpu").save(tmp_path)
    ours = Critic.load(tmp_path, device="cpu").model.state_dict()
    theirs = Critic.load(tiny_checkpoint, device="cpu").model.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_a_policy_with_another_tokenizer_is_refused(tiny_checkpoint, tiny_policy):
    critic = Critic.load(tiny_checkpoint, device="cpu")
    critic.check_tokenizers([tiny_policy])
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["ü"])
    other = Policy(policy_id="other", model=build_model(len(tokenizer)), tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="policy 'other' has another tokenizer"):
        critic.check_tokenizers([tiny_policy, other])
