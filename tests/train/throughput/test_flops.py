"""Operations against torch's own counter, and by hand."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from srpo_train.throughput.flops import AttentionFlops, ModelFlops, Products, causal_pairs, measure_flops

SPECIAL = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
SHAPE = SPECIAL | {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def qwen(**changes):
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE | changes))


def lora(*targets):
    config = LoraConfig(r=4, target_modules=list(targets) or "all-linear", lora_dropout=0.0)
    return get_peft_model(qwen(tie_word_embeddings=False), config)


def latent_attention():
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            hidden_size=16,
            intermediate_size=24,
            moe_intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            kv_lora_rank=8,
            q_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=6,
            **SPECIAL,
        )
    )


def frozen_but_for_the_head():
    model = qwen(tie_word_embeddings=False)
    model.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    return model


MODELS = {
    "tied head": lambda: qwen(tie_word_embeddings=True),
    "untied head": lambda: qwen(tie_word_embeddings=False),
    "gpt2, its own linear layers": lambda: GPT2LMHeadModel(
        GPT2Config(n_positions=32, n_embd=16, n_layer=1, n_head=2, **SPECIAL)
    ),
    "windows": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=3)),
    "experts": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=12)
    ),
    "latent attention": latent_attention,
    "adapter everywhere": lora,
    "adapter on queries and values": lambda: lora("q_proj", "v_proj"),
    "adapter behind the first attention": lambda: lora("gate_proj"),
    "adapter on the head": lambda: lora("down_proj", "lm_head"),
    "head alone": frozen_but_for_the_head,
}


def whole_square(length, window=None):
    """What plain attention computes, and so the counter counts, whatever is masked."""
    return length * length


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_rows, length", [(1, 5), (3, 7)])
def test_counts_are_those_of_torchs_counter(name, num_rows, length):
    model = MODELS[name]()
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    plain.set_attn_implementation("eager")  # fused attention is not in the counter on a CPU, nor are fused experts
    plain.set_experts_implementation("eager")
    ids = torch.randint(0, 61, (num_rows, length))
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(input_ids=ids, use_cache=False)
    with FlopCounterMode(display=False) as training:
        model(input_ids=ids, use_cache=False).logits.sum().backward()
    flops = measure_flops(model)
    rows = {"lengths": [length] * num_rows, "num_scored": num_rows * length, "count": whole_square}
    assert flops.forward(**rows).model == forward.get_total_flops()
    assert flops.training(**rows).model == training.get_total_flops()


def test_measuring_leaves_the_model_as_it_was():
    model = qwen()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    state = torch.random.get_rng_state()
    measure_flops(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_without_memory_is_measured_by_its_configuration():
    model = qwen()
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(model.config)
    assert measure_flops(shape) == measure_flops(model)


def test_recurrent_layers_are_said_to_be_left_out(caplog):
    flops = measure_flops(MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=1, state_size=4, **SPECIAL)))
    assert "cannot be watched" in caplog.text
    assert flops.attention == ()


@pytest.mark.parametrize("length, window, pairs", [(1, None, 1), (4, None, 10), (4, 9, 10), (5, 2, 9), (3, 1, 3)])
def test_causal_pairs(length, window, pairs):
    # With a window of 2, five queries look at 1, 2, 2, 2, 2 keys.
    assert causal_pairs(length, window) == pairs


def made(**changes):
    values = {
        "body": Products(100.0, 90.0, 80.0),
        "head": Products(10.0, 9.0, 8.0),
        "attention": (AttentionFlops(2.0, 4.0, None), AttentionFlops(2.0, 0.0, 2)),
    }
    return ModelFlops(**values | changes)


def test_operations_of_a_hand_made_case():
    # A row of 3 has 6 pairs, 5 within a window of 2: forward 3 * 100 + 2 * 10 + 6 * 2 + 5 * 2 = 342;
    # training 3 * 270 + 2 * 27 + 6 * (2 + 4) + 5 * 2 = 910; the logits once more are 2 * 10.
    assert made().forward([3], 2).model == 342
    assert made().training([3], 2) == (910, 930)
    # The layers once more: 3 * 100 + 6 * 2 + 5 * 2 = 322.
    assert made(recomputes_layers=True).training([3], 2) == (910, 1252)
    assert made(recomputes_head=False).training([3], 2) == (910, 910)


def test_rows_add_up_and_padding_does_not_count():
    flops = made()
    assert flops.training([3, 5], 4).model == flops.training([3], 1).model + flops.training([5], 3).model


def test_equal_prompts_are_computed_once():
    flops = made()
    # [5, 6] with 3 and with 1 sampled tokens: rows of 4 and 2 tokens go through the model, less one prompt of 2.
    expected = flops.forward([4, 2], 4).model - flops.forward([2], 0).model
    assert flops.sampling([((5, 6), 3), ((5, 6), 1)]).model == expected
    assert flops.sampling([((5, 6), 3), ((5, 7), 1)]).model == flops.forward([4, 2], 4).model


def test_sampling_asks_for_what_one_forward_pass_over_the_row_would():
    # A cache saves nothing of the mathematics but the last token, which nobody reads.
    flops = made()
    assert flops.sampling([((5, 6, 7), 4)]).model == flops.forward([6], 4).model
