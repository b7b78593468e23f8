"""A tiny random policy, shared by the tests of policies and engines.

Its vocabulary is small on purpose: random responses then contain stop texts, end-of-sequence tokens and pieces that
encode differently when their text is read again (``a`` + ``b`` becomes ``ab``), which real models do rarely.
"""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Path:
    """A directory in transformers format."""
    directory = tmp_path_factory.mktemp("tiny_checkpoint")
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("?")]
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_policy(tiny_checkpoint):
    """The policy of that directory, in float32 on the CPU; tests must leave it as it is."""
    from srpo_train.policies import Policy

    return Policy.load("tiny", tiny_checkpoint, device="cpu")


@pytest.fixture(scope="session")
def dropout_policy():
    """A policy whose model was configured with attention dropout."""
    from srpo_train.policies import Policy

    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), attention_dropout=0.5)
    return Policy(policy_id="dropout", model=model, tokenizer=tokenizer)
