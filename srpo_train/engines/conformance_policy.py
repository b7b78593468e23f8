"""A random little policy on which every check of the suite has something to bite on.

Its vocabulary is small on purpose: random responses then contain stop texts, ends, characters of several tokens and
pieces that encode differently when their text is read again, which real models do rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from srpo_train.policies.policy import Policy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CHARACTERS = "abcdefgh0123456789<>/|+*=?. \n" + "é…"
_MERGES = ("a b", "c d", "b >", "< /", "</ a", "> Ċ", "0 1")
_TEMPLATE = (
    "{%- for message in messages -%}<|user|>{{ message['content'] }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)

PROMPTS = ("0+1=?", "a*b>cd 0123456789=?", "g")
"""Prompts of different lengths that its vocabulary can spell."""


def conformance_policy(dtype: torch.dtype = torch.float32) -> Policy:
    """Return a policy of some 50,000 random weights whose distribution is far from uniform; always the same one.

    Two tokens end a response, one of them known from the generation configuration alone.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = small_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # vLLM has no smaller ones on a CPU
        intermediate_size=64,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = Qwen3ForCausalLM(config)
    torch.nn.Module.to(model, dtype)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("?")]
    return Policy(policy_id="conformance", model=model, tokenizer=tokenizer)


def conformance_adapter(seed: int = 0) -> Policy:
    """Return a policy that is a LoRA adapter over that one, with random weights."""
    from srpo_train.config import AdapterConfig
    from srpo_train.policies.shared_base import SharedBase

    plain = conformance_policy()
    base = SharedBase(plain.model, plain.tokenizer)
    share = base.new_adapter(plain.policy_id, AdapterConfig(rank=4, alpha=8.0), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in share.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return Policy(policy_id=plain.policy_id, model=base.model, tokenizer=base.tokenizer, share=share)


def small_tokenizer(template: str = _TEMPLATE, tags: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE over a few characters; the padding token is the end-of-sequence token.

    Args:
        template: Chat template.
        tags: Texts that are a token each, beside the special ones.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted({symbol for piece, _ in byte_level.pre_tokenize_str(_CHARACTERS) for symbol in piece})
    merged = ["".join(merge.split()) for merge in _MERGES]
    vocabulary = {symbol: number for number, symbol in enumerate([*alphabet, *merged])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[(a, b) for a, b in (merge.split() for merge in _MERGES)]))
    core.pre_tokenizer, core.decoder = byte_level, decoders.ByteLevel()
    core.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer
