r"""A byte-level BPE of a few hundred tokens, trained on transcripts of the embedded task.

Digits, operators and line breaks never merge, so arithmetic is seen one digit at a time; tags and ``\boxed{`` are
single tokens; every other byte sequence still encodes, because the 256 bytes are in the vocabulary. ``vocab_size``
equals ``len(tokenizer)``: a model with that many outputs cannot sample an id that has no text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
CONTROL_TOKENS = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>")
"""Tokens that structure a conversation; hidden when a response is decoded."""

TAG_TOKENS = (
    "<think>",
    "</think>",
    "<verify>",
    "</verify>",
    "<route>",
    "</route>",
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "\\boxed{",
)
"""Tokens of the response formats; ordinary text that happens to be one token."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
"""``<|user|>prompt<|end|><|assistant|>``, then the response and ``<|end|>``."""

_ALONE = Regex(r"[0-9]|[-+*=]|\n")


def train_tokenizer(texts: Iterable[str], vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """Train the tokenizer; equal texts give an equal tokenizer.

    Args:
        texts: Prompts and responses.
        vocab_size: Most tokens; fewer when every repeated piece of the texts is a token before.

    Returns:
        A fast tokenizer with ``<|end|>`` as end of sequence, a padding token and a chat template.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_ALONE, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*CONTROL_TOKENS, *TAG_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_without_tags(texts), trainer)
    return _wrap(_with_visible_tags(core))


def _without_tags(texts: Iterable[str]) -> Iterable[str]:
    """Take the tags out, which are tokens already, so that no merge is spent on their letters."""
    for text in texts:
        for tag in TAG_TOKENS:
            text = text.replace(tag, "\n")
        yield text


def _with_visible_tags(core: Tokenizer) -> Tokenizer:
    """Mark the tags as ordinary text: the trainer makes reserved tokens special, and decoding would hide them."""
    fields = json.loads(core.to_str())
    for token in fields["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    return Tokenizer.from_str(json.dumps(fields))


def _wrap(core: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[token for token in CONTROL_TOKENS if token not in (PAD, END)],
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
