"""Packed rows against padded ones: the same log-probabilities and gradients, whatever the lengths."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from srpo_envs.errors import ConfigError
from srpo_train.batching import MemberRow, micro_batches, pack_rows, pad_rows
from srpo_train.policies.logprobs import ModelScorer, token_logprobs
from srpo_train.policies.packing import IMPLEMENTATION, packs, resolve_packing

SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "vocab_size": 61}
SHAPE = SPECIAL | {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
}
LENGTHS = ((6, 6), (6, 5), (3, 5), (1, 7), (6, 0), (5, 1), (2, 1))


def build(config, model_class):
    torch.manual_seed(0)
    return model_class(config).eval()


def qwen(**changes):
    return build(Qwen3Config(**SHAPE | changes), Qwen3ForCausalLM)


MODELS = {
    "qwen3": qwen,
    "qwen3, a window in one layer": lambda: qwen(sliding_window=4, use_sliding_window=True, max_window_layers=1),
    "gemma3, windows": lambda: build(
        Gemma3TextConfig(**SHAPE, sliding_window=3, layer_types=["sliding_attention", "full_attention"]),
        Gemma3ForCausalLM,
    ),
    "experts": lambda: build(
        Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12), Qwen3MoeForCausalLM
    ),
    "gpt2, learned positions": lambda: build(
        GPT2Config(n_positions=32, n_embd=16, n_layer=1, n_head=2, **SPECIAL), GPT2LMHeadModel
    ),
    "opt, a base model that is passed by": lambda: build(
        OPTConfig(
            hidden_size=16,
            ffn_dim=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            word_embed_proj_dim=16,
            max_position_embeddings=32,
            **SPECIAL,
        ),
        OPTForCausalLM,
    ),
    "eager attention": lambda: qwen(attn_implementation="eager"),
    "an adapter": lambda: get_peft_model(qwen(), LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)),
}


def make_rows(lengths, policy_id="p"):
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(2, 61, (prompt + response,), generator=draw).tolist() for prompt, response in lengths]
    return [
        MemberRow(event_index=0, member_index=j, policy_id=policy_id, prompt_ids=row[:p], token_ids=row[p:])
        for j, (row, (p, _)) in enumerate(zip(ids, lengths, strict=True))
    ]


def score_and_gradients(model, tensors, **options):
    model.zero_grad()
    scores = token_logprobs(model, tensors, temperature=0.7, with_entropy=True, **options)
    weight = torch.linspace(-1, 1, scores.logprobs_MT.numel()).view(scores.logprobs_MT.shape)
    ((scores.logprobs_MT + 0.5 * scores.entropy_MT) * weight).sum().backward()
    return scores, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(padded, packed):
    for expected, actual in zip(padded[0], packed[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert padded[1].keys() == packed[1].keys()
    for name, expected in padded[1].items():
        torch.testing.assert_close(packed[1][name], expected, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: n + text)


@pytest.mark.parametrize("name", MODELS)
def test_packed_rows_score_and_train_as_padded_ones(name):
    padded, rows = MODELS[name](), make_rows(LENGTHS)
    packed = copy.deepcopy(padded)
    assert packs(packed)
    assert_equal(score_and_gradients(padded, pad_rows(rows)), score_and_gradients(packed, pack_rows(rows)))


PADDED, PACKED = qwen(sliding_window=5, use_sliding_window=True, max_window_layers=1), qwen()
PACKED = copy.deepcopy(PADDED)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 14), st.integers(0, 14)), min_size=1, max_size=9))
def test_any_lengths_in_any_order_give_the_same(lengths):
    rows = make_rows(lengths)
    assert packs(PACKED)
    assert_equal(
        score_and_gradients(PADDED, pad_rows(rows), chunk_size=3),
        score_and_gradients(PACKED, pack_rows(rows), chunk_size=3),
    )


def test_layers_computed_again_in_the_backward_pass_see_the_rows_again():
    padded, rows = qwen(), make_rows(LENGTHS)
    packed = copy.deepcopy(padded)
    packed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    packed.train()
    assert packs(packed)
    assert_equal(score_and_gradients(padded, pad_rows(rows)), score_and_gradients(packed, pack_rows(rows)))


def test_a_model_that_packs_still_takes_padded_rows():
    model, rows = qwen(), make_rows(LENGTHS)
    before = token_logprobs(model, pad_rows(rows)).logprobs_MT
    assert packs(model)
    assert model.config._attn_implementation == IMPLEMENTATION
    assert torch.equal(token_logprobs(model, pad_rows(rows)).logprobs_MT, before)


@pytest.mark.parametrize(
    "model",
    [
        build(MambaConfig(hidden_size=16, num_hidden_layers=1, state_size=4, **SPECIAL), MambaForCausalLM),
        build(BloomConfig(hidden_size=16, n_layer=1, n_head=2, **SPECIAL), BloomForCausalLM),
    ],
    ids=["a recurrent state", "positions by distance"],
)
def test_models_whose_rows_would_see_each_other_are_refused(model):
    attention = model.config._attn_implementation
    with pytest.raises(ConfigError, match=r"'solver'.*would see each other"):
        resolve_packing("solver", model, True)
    assert resolve_packing("solver", model, "auto") is False
    assert model.config._attn_implementation == attention


def test_auto_packs_where_attention_has_a_way_for_it():
    assert resolve_packing("p", qwen(), "auto") is True
    assert resolve_packing("p", qwen(attn_implementation="eager"), "auto") is False
    assert resolve_packing("p", qwen(attn_implementation="eager"), True) is True
    untouched = qwen()
    assert resolve_packing("p", untouched, False) is False
    assert untouched.config._attn_implementation == "sdpa"


def test_a_scorer_packs_what_it_is_given():
    padded, rows = qwen(), make_rows(LENGTHS)
    packed = copy.deepcopy(padded)
    assert packs(packed)
    expected, actual = ModelScorer(model=padded)(rows), ModelScorer(model=packed, packing=True)(rows)
    torch.testing.assert_close(actual.logprobs_MT, expected.logprobs_MT, rtol=0, atol=1e-5)


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(8, 64))
def test_lines_hold_each_row_once_within_the_budget_and_mostly_full(lengths, max_tokens):
    rows = make_rows([(length, 0) for length in lengths])
    lines = micro_batches(rows, max_tokens, packed={"p"})
    assert sorted(index for line in lines for index in line) == list(range(len(rows)))
    filled = [sum(rows[index].num_tokens for index in line) for line in lines]
    assert all(total <= max_tokens or len(line) == 1 for total, line in zip(filled, lines, strict=True))
    # Two lines that fit into one would have been one, whichever way best fit went.
    assert sum(total * 2 <= max_tokens for total in filled) <= 1


def test_rows_of_other_policies_stay_padded():
    rows = make_rows([(20, 0), (4, 0), (4, 0)]) + make_rows([(20, 0), (4, 0), (4, 0)], policy_id="q")
    # 28 tokens of p make one line; padded they would be 60, more than the budget.
    assert micro_batches(rows, 30, packed={"p"}) == [[0, 1, 2], [3], [4, 5]]
