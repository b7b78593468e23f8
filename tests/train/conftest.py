"""A tiny random policy, shared by the tests of policies and engines.

Its vocabulary is small on purpose: random responses then contain stop texts, end-of-sequence tokens and pieces that
encode differently when their text is read again (``a`` + ``b`` becomes ``ab``), which real models do rarely.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LETTERS = "abcdefgh0123456789<>/|+*=?. \n" + "é…"
MERGES = ["a b", "c d", "b >", "< /", "</ a", "> Ċ", "0 1"]
TEMPLATE = (
    "{%- for message in messages -%}<|user|>{{ message['content'] }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- if thinking is defined and thinking -%}<think>{%- endif -%}"
    "{%- endif -%}"
)


def build_tokenizer():
    """A byte-level BPE over a few letters; the padding token is the end-of-sequence token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted({symbol for piece, _ in byte_level.pre_tokenize_str(LETTERS) for symbol in piece})
    merges = [tuple(merge.split()) for merge in MERGES]
    vocabulary = {symbol: number for number, symbol in enumerate([*alphabet, *("".join(merge) for merge in merges)])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer, core.decoder = byte_level, decoders.ByteLevel()
    core.add_tokens([AddedToken(tag, normalized=False) for tag in ("<think>", "</think>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


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
