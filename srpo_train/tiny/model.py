"""The architecture of an embedded policy."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from srpo_envs.errors import ConfigError

WIDTH = 64
"""Hidden size of the shipped policies."""


def tiny_config(tokenizer: PreTrainedTokenizerFast, width: int = WIDTH) -> Qwen3Config:
    """Return the architecture: about 0.13 million parameters; heads of 32, the least that vLLM runs on a CPU.

    Args:
        tokenizer: Decides the vocabulary.
        width: Hidden size. The layers between are two and a half times as wide; attention has as many heads as ever.

    Raises:
        ConfigError: a width that is not positive and even.
    """
    if width < 2 or width % 2:
        raise ConfigError(f"width: expected a positive even number, got {width}")
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 5 // 2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        use_cache=True,
        dtype="float32",
    )


def new_model(config: Qwen3Config, seed: int) -> Qwen3ForCausalLM:
    """Return a freshly initialised model without touching the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        torch.nn.Module.to(model, torch.float32)
        return model
