r"""A byte-level BPE of a few hundred tokens, trained on transcripts of an embedded task.

Merges stay within pieces: where digits, operators and line breaks are pieces, arithmetic is seen one digit at a time.
Tags, ``\boxed{`` and given words are single tokens; every other byte sequence still encodes, because the 256 bytes are
in the vocabulary. ``vocab_size`` equals ``len(tokenizer)``: a model with that many outputs cannot sample an id that has
no text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

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


def train_tokenizer(
    texts: Iterable[str], *, pieces: str, words: Sequence[str] = (), num_merged: int = 128
) -> PreTrainedTokenizerFast:
    """Train the tokenizer; equal texts give an equal tokenizer.

    Args:
        texts: Prompts and responses.
        pieces: Regular expression; every match stands alone, and so does what is between two matches.
        words: Texts that are one token each wherever they stand.
        num_merged: Most tokens that are neither bytes nor given; fewer when every repeated piece is a token before.

    Returns:
        A fast tokenizer with ``<|end|>`` as end of sequence, a padding token and a chat template.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    whole, alphabet = (*TAG_TOKENS, *words), sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(CONTROL_TOKENS) + len(whole) + len(alphabet) + num_merged,
        special_tokens=[*CONTROL_TOKENS, *whole],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core.train_from_iterator(_without(whole, texts), trainer)
    return _wrap(_with_visible_words(core))


def _without(whole: Sequence[str], texts: Iterable[str]) -> Iterable[str]:
    """Take out what is a token already, so that no merge is spent on its letters."""
    anything = re.compile("|".join(map(re.escape, whole)))
    return (anything.sub("\n", text) for text in texts)


def _with_visible_words(core: Tokenizer) -> Tokenizer:
    """Mark tags and words as ordinary text: the trainer makes them special, and decoding would hide them."""
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
