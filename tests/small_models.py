"""The tiny random model of the tests of policies and engines, and its tokenizer."""

from __future__ import annotations

TEMPLATE = (
    "{%- for message in messages -%}<|user|>{{ message['content'] }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- if thinking is defined and thinking -%}<think>{%- endif -%}"
    "{%- endif -%}"
)


def build_tokenizer():
    """The conformance policy's tokenizer, with tags and a template that thinking can be asked of."""
    from srpo_train.engines.conformance_policy import small_tokenizer

    return small_tokenizer(TEMPLATE, tags=("<think>", "</think>"))


def build_model(vocab_size: int, **changes):
    """A random Qwen3 of about 40,000 parameters whose distribution is far from uniform."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    } | changes
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Qwen3ForCausalLM(Qwen3Config(**config))
