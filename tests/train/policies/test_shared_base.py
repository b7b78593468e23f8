"""Policies over one frozen model: what they compute, sample, learn and leave on disk."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from srpo_envs.errors import ConfigError, MissingExtraError, PolicyLoadError
from srpo_train.batching import MemberRow
from srpo_train.config import AdapterConfig
from srpo_train.engines import GenerationRequest, Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies import Policy, Team, shared_base
from srpo_train.policies.logprobs import ModelScorer, head_form
from srpo_train.policies.shared_base import Bases

pytest.importorskip("peft")

SMALL = AdapterConfig(rank=4, alpha=8.0)
IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])


def load(checkpoint, policy_id="a", bases=None, adapter=SMALL, **options):
    return Policy.load(policy_id, checkpoint, device="cpu", adapter=adapter, bases=bases, **options)


def shake(policy, seed, size=0.2):
    """Move an adapter away from its base, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable_parameters:
            parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter))
    return policy


@pytest.fixture
def pair(tiny_checkpoint):
    """Two trained adapters over one base."""
    bases = Bases()
    return [shake(load(tiny_checkpoint, policy_id, bases), seed) for seed, policy_id in enumerate("ab")]


def merged(checkpoint, policy, scale=2.0):
    """A full policy with the adapter's product added to the weights: scale is alpha / rank = 8 / 4."""
    full = Policy.load("merged", checkpoint, device="cpu")
    factors = policy.share.state_dict()
    with torch.no_grad():
        for key, inner in factors.items():
            if ".lora_A." in key:
                name = key.removeprefix("base_model.model.").replace(".lora_A", "")
                full.model.get_parameter(name).add_(scale * factors[key.replace("lora_A", "lora_B")] @ inner)
    return full


def logits(policy):
    with policy.sampling_mode():
        return policy.model(input_ids=IDS).logits


def rows(policy_id="a"):
    shapes = [([3, 4, 5], [6, 7, 8]), ([9], [3, 3]), ([5, 6], [4])]
    return [
        MemberRow(event_index=0, member_index=j, policy_id=policy_id, prompt_ids=prompt, token_ids=tokens)
        for j, (prompt, tokens) in enumerate(shapes)
    ]


# --- computing ----------------------------------------------------------------------------------------------------


def test_a_new_adapter_equals_its_base_bit_for_bit(tiny_policy, tiny_checkpoint):
    policy = load(tiny_checkpoint)
    assert torch.equal(logits(policy), logits(tiny_policy))
    assert policy.trainable_parameters


@pytest.mark.parametrize("init", ["kaiming", "gaussian"])
def test_first_weights_follow_from_seed_and_policy_and_leave_the_global_generator_alone(tiny_checkpoint, init):
    def inner(policy_id, seed):
        policy = load(tiny_checkpoint, policy_id, adapter=AdapterConfig(rank=4, alpha=8.0, init=init), seed=seed)
        return torch.cat([parameter.detach().flatten() for parameter in policy.trainable_parameters])

    torch.manual_seed(0)
    first = inner("a", 0)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(inner("a", 0), first)
    assert not torch.equal(inner("b", 0), first)
    assert not torch.equal(inner("a", 1), first)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), drawn)


def test_each_policy_computes_with_its_own_adapter_over_one_model(pair, tiny_checkpoint, tiny_policy):
    first, second = pair
    assert first.model is second.model
    for policy in (first, second, first):
        torch.testing.assert_close(logits(policy), logits(merged(tiny_checkpoint, policy)), rtol=0, atol=2e-5)
    assert (logits(first) - logits(second)).abs().max() > 0.1
    with torch.no_grad():  # outside, the model is the base alone
        assert torch.equal(first.model(input_ids=IDS).logits, logits(tiny_policy))


def test_what_was_active_before_is_active_again(pair):
    first, second = pair
    with first.active():
        before = first.model(input_ids=IDS).logits
        with pytest.raises(KeyError), second.active():
            raise KeyError
        assert torch.equal(first.model(input_ids=IDS).logits, before)


def test_only_the_adapters_are_added_to_one_copy_of_the_weights(pair):
    # Rank 4 times inputs and outputs, in two layers: q 32+64, k and v 32+32, o 64+32, gate and up 32+64, down 64+32.
    one = 2 * 4 * (96 + 64 + 64 + 96 + 96 + 96 + 96)
    base = 1_472 + 2 * 12_384 + 32  # see test_policy.py
    assert [policy.num_parameters for policy in pair] == [base + one] * 2
    assert sum(parameter.numel() for parameter in pair[0].model.parameters()) == base + 2 * one
    assert sum(parameter.numel() for parameter in pair[1].trainable_parameters) == one


def test_half_precision_adapters_have_the_format_of_their_base(tiny_checkpoint):
    policy = load(tiny_checkpoint, dtype="bfloat16")
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}


def test_chosen_targets_alone_get_an_adapter(tiny_checkpoint):
    adapter = AdapterConfig(rank=4, alpha=8.0, targets=("q_proj", "down_proj"), use_rslora=True)
    policy = load(tiny_checkpoint, adapter=adapter)
    keys = {key.split(".")[-3] for key in policy.share.state_dict()}
    assert keys == {"q_proj", "down_proj"}
    shake(policy, 0)
    expected = merged(tiny_checkpoint, policy, scale=8.0 / 4**0.5)
    torch.testing.assert_close(logits(policy), logits(expected), rtol=0, atol=5e-5)


# --- sampling and scoring -----------------------------------------------------------------------------------------


def sample(policy):
    prompts = ["0+1=?", "a*b>cd 0123456789=?", "g"]
    requests = [
        GenerationRequest(request_id=str(n), prompt=prompts[n % 3], max_new_tokens=16, seed=n) for n in range(9)
    ]
    return TransformersEngine(policy).generate(requests, Sampling(temperature=0.9))


def test_the_engine_samples_with_the_right_adapter(pair, tiny_checkpoint):
    for policy in pair:
        expected = sample(merged(tiny_checkpoint, policy))
        for ours, theirs in zip(sample(policy), expected, strict=True):
            assert ours.token_ids == theirs.token_ids
            torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), rtol=0, atol=1e-4)


def test_decoding_under_an_adapter_takes_the_path_without_repeated_keys(pair, monkeypatch):
    from srpo_train.engines import attention

    calls = []
    original = torch.nn.functional.scaled_dot_product_attention

    def spy(query, key, *arguments, **named):
        calls.append((query.shape[1], key.shape[1]))
        return original(query, key, *arguments, **named)

    monkeypatch.setattr(attention.torch.nn.functional, "scaled_dot_product_attention", spy)
    sample(pair[0])
    assert calls.count((2, 2)) > len(calls) / 2  # two key-value heads, no copy for four query heads


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_under_an_adapter_equal_the_full_logits_of_merged_weights(pair, tiny_checkpoint, temperature):
    for policy in pair:
        model = merged(tiny_checkpoint, policy).model
        scored = policy.scorer(temperature=temperature, with_entropy=True)(rows())
        assert head_form(policy.model) is not None  # the head goes in tiles, not through its full logits
        for index, row in enumerate(rows()):
            ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
            full = (model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
            wanted = full.gather(1, torch.tensor(row.token_ids)[:, None]).squeeze(1)
            length = len(row.token_ids)
            torch.testing.assert_close(scored.logprobs_MT[index, :length], wanted, rtol=0, atol=1e-4)
            entropy = -(full.exp() * full).sum(-1)
            torch.testing.assert_close(scored.entropy_MT[index, :length], entropy, rtol=0, atol=1e-4)


def test_a_model_that_peft_wrapped_is_scored_as_it_computes(pair):
    policy = pair[0]
    wrapped = policy.share.base.as_peft()
    wrapped.set_adapter(policy.share.name)
    assert head_form(wrapped) is not None
    scored = ModelScorer(model=wrapped)(rows()).logprobs_MT
    torch.testing.assert_close(scored, policy.scorer()(rows()).logprobs_MT, rtol=0, atol=1e-6)


# --- gradients ----------------------------------------------------------------------------------------------------


def gradients(policies):
    return [parameter.grad for policy in policies for parameter in policy.trainable_parameters]


def test_the_base_gets_no_gradient_and_each_adapter_its_own(pair):
    first, second = pair
    first.scorer()(rows()).logprobs_MT.sum().backward()
    assert all(gradient is not None for gradient in gradients([first]))
    assert all(gradient is None for gradient in gradients([second]))
    trained = {id(parameter) for policy in pair for parameter in policy.trainable_parameters}
    assert all(p.grad is None for p in first.model.parameters() if id(p) not in trained)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_in_one_graph_equal_those_of_separate_models(tiny_checkpoint, checkpointing):
    # One event's members use both adapters: one graph, two adapters over the same modules, one backward pass. With
    # checkpointing the layers are computed again in it, when no adapter is active any more.
    bases = Bases()
    together = [
        shake(load(tiny_checkpoint, policy_id, bases, gradient_checkpointing=checkpointing), seed)
        for seed, policy_id in enumerate("ab")
    ]
    apart = [shake(load(tiny_checkpoint, policy_id), seed) for seed, policy_id in enumerate("ab")]
    values = []
    for policies in (together, apart):
        first, second = (policy.scorer()(rows()).logprobs_MT.sum() for policy in policies)
        value = torch.sin(first * second / 100)
        value.backward()
        values.append(value.item())
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    for actual, expected in zip(gradients(together), gradients(apart), strict=True):
        torch.testing.assert_close(actual, expected)


def test_checkpointing_over_a_frozen_base_recomputes_layers(tiny_checkpoint):
    policy = load(tiny_checkpoint, gradient_checkpointing=True)
    scorer = policy.scorer()
    calls = []
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    score = scorer(rows()).logprobs_MT.sum()
    assert len(calls) == 2  # one for the form of the head, once a model
    score.backward()
    assert len(calls) == 3


# --- files --------------------------------------------------------------------------------------------------------


def test_a_saved_adapter_loads_as_it_was(pair, tiny_checkpoint, tmp_path):
    for policy in pair:
        policy.save(tmp_path / policy.policy_id)
        again = Policy.load("again", tmp_path / policy.policy_id, base=tiny_checkpoint, device="cpu")
        assert torch.equal(logits(again), logits(policy))
        assert again.encode_prompt("0+1") == policy.encode_prompt("0+1")
        assert len(again.trainable_parameters) == len(policy.trainable_parameters)


def test_a_saved_adapter_is_read_by_peft_and_transformers(pair, tiny_checkpoint, tmp_path):
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = pair[1]
    policy.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    plain = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    for model in (PeftModel.from_pretrained(plain, tmp_path), AutoPeftModelForCausalLM.from_pretrained(tmp_path)):
        with torch.no_grad():
            torch.testing.assert_close(model(input_ids=IDS).logits, logits(policy), rtol=0, atol=1e-6)
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == len(policy.tokenizer)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert settings["target_modules"] == sorted(settings["target_modules"])
    assert (settings["r"], settings["lora_alpha"], settings["lora_dropout"]) == (4, 8.0, 0.0)


def test_an_adapter_s_file_holds_that_adapter_alone(tiny_checkpoint, tmp_path):
    # Names of which one begins another, adapter_1 and adapter_10.
    bases = Bases()
    adapter = AdapterConfig(rank=1, alpha=1.0, targets=("q_proj",))
    policies = [shake(load(tiny_checkpoint, f"p{n}", bases, adapter=adapter), seed=n) for n in range(11)]
    policies[1].save(tmp_path)
    again = Policy.load("again", tmp_path, device="cpu")
    for ours, theirs in zip(again.trainable_parameters, policies[1].trainable_parameters, strict=True):
        assert torch.equal(ours, theirs)
    assert len(again.share.state_dict()) == 2 * 2


def test_an_adapter_as_source_goes_on_from_its_weights_and_names_its_base(pair, tmp_path):
    pair[0].save(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"inference_mode": False}))  # as other tools may write it
    policy = Policy.load("c", tmp_path, device="cpu", trainable=False)
    assert torch.equal(logits(policy), logits(pair[0]))
    assert policy.trainable_parameters == []
    assert not any(parameter.requires_grad for parameter in policy.model.parameters())
    with pytest.raises(ConfigError, match="holds an adapter already"):
        load(tmp_path)


def test_a_frozen_model_is_saved_without_the_adapters_over_it(pair, tiny_checkpoint, tiny_policy, tmp_path):
    base = pair[0].share.base.alone()
    frozen = Policy(policy_id="f", model=base.base.model, tokenizer=pair[0].tokenizer, share=base, is_trainable=False)
    frozen.save(tmp_path)
    assert torch.equal(logits(Policy.load("again", tmp_path, device="cpu")), logits(tiny_policy))
    assert frozen.num_parameters == tiny_policy.num_parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "not plain LoRA"),
        ({"bias": "all"}, "not plain LoRA"),
        ({"modules_to_save": ["lm_head"]}, "not plain LoRA"),
        ({"r": 3}, "cannot load the adapter"),
        ({"target_modules": ["q_proj"]}, "does not fit its base"),
        ({"base_model_name_or_path": None}, "names no base_model_name_or_path"),
        ({"peft_type": "NONE"}, "cannot be read"),
    ],
)
def test_a_stored_adapter_that_cannot_be_used_is_refused(pair, tmp_path, change, message):
    pair[0].save(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PolicyLoadError, match=f"policy 'c'.*{message}"):
        Policy.load("c", tmp_path, device="cpu")


def test_a_target_that_is_no_linear_layer_is_refused_with_the_nearest_one(tiny_checkpoint):
    for target in ("q_prj", "lm_head", "embed_tokens"):
        with pytest.raises(ConfigError, match=f"no linear layer '{target}' below the output head"):
            load(tiny_checkpoint, adapter=AdapterConfig(targets=(target,)))
    with pytest.raises(ConfigError, match="did you mean 'q_proj'"):
        load(tiny_checkpoint, adapter=AdapterConfig(targets=("q_prj",)))


def test_without_peft_the_extra_is_named(tiny_checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"srpo\[lora\]"):
        load(tiny_checkpoint)


# --- sharing ------------------------------------------------------------------------------------------------------


def spec(source, **options):
    return {"source": str(source), "device": "cpu", **options}


def test_a_team_loads_a_frozen_model_once_and_a_trained_one_for_itself(tiny_checkpoint, monkeypatch):
    read = []
    original = shared_base.read_checkpoint
    monkeypatch.setattr(shared_base, "read_checkpoint", lambda *a: read.append(a[0]) or original(*a))
    specs = {
        "a": spec(tiny_checkpoint, adapter=SMALL),
        "b": spec(tiny_checkpoint, adapter=AdapterConfig(rank=2, alpha=1.0, targets=("q_proj",))),
        "judge": spec(tiny_checkpoint, trainable=False),
        "half": spec(tiny_checkpoint, adapter=SMALL, dtype="bfloat16"),
        "full": spec(tiny_checkpoint),
    }
    bases = Bases()
    team = Team.load(specs, {"x": "a", "*": "b"}, bases)
    assert team["a"].model is team["b"].model is team["judge"].model
    assert team["full"].model is not team["a"].model
    assert team["half"].model.dtype == torch.bfloat16
    assert read == ["a", "half"]
    # References of a divergence penalty are what the policies stand on, and of a full model a frozen copy: that base.
    references = Team.load({key: spec(tiny_checkpoint, trainable=False) for key in "ab"}, {"*": "a"}, bases)
    assert references["a"].model is references["b"].model is team["a"].model
    assert read == ["a", "half"]


def test_adapters_of_different_kinds_over_one_base_do_not_mix(tiny_checkpoint):
    bases = Bases()
    wide = shake(load(tiny_checkpoint, "a", bases), 0)
    narrow = shake(load(tiny_checkpoint, "b", bases, adapter=AdapterConfig(rank=2, alpha=4.0, targets=("q_proj",))), 1)
    for policy in (wide, narrow):
        torch.testing.assert_close(logits(policy), logits(merged(tiny_checkpoint, policy)), rtol=0, atol=2e-5)
