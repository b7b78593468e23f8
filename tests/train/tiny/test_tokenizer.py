from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_train.tiny import checkpoint_dir
from srpo_train.tiny.make import make_tokenizer
from srpo_train.tiny.tokenizer import CONTROL_TOKENS, TAG_TOKENS, train_tokenizer

TEXTS = ["Compute 3*7-4 from left to right, mod 10.\nSolve.", "<think>3*7=1-4=7</think>\\boxed{7}"]
TOKENIZER = train_tokenizer(TEXTS * 20)

anything = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([*TAG_TOKENS, "3", "*", "=", " ", "\n", "Solve", "{", "ä", "…", "\0", "\r\n"])).map(
        "".join
    ),
)
"""Texts without control tokens, which are the one kind of text that decoding hides."""


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@given(anything.filter(lambda text: not any(token in text for token in CONTROL_TOKENS)))
def test_every_text_survives_encoding_and_decoding(text):
    assert TOKENIZER.decode(ids(TOKENIZER, text), skip_special_tokens=True) == text


@pytest.mark.parametrize("token", [*CONTROL_TOKENS, *TAG_TOKENS])
def test_tags_and_control_tokens_are_single_tokens_wherever_they_stand(shipped_tokenizer, token):
    assert len(ids(shipped_tokenizer, token)) == 1
    assert ids(shipped_tokenizer, f"7{token}7") == [
        *ids(shipped_tokenizer, "7"),
        *ids(shipped_tokenizer, token),
        *ids(shipped_tokenizer, "7"),
    ]


def test_decoding_shows_tags_and_hides_control_tokens(shipped_tokenizer):
    text = "".join([*CONTROL_TOKENS, *TAG_TOKENS])
    assert shipped_tokenizer.decode(ids(shipped_tokenizer, text), skip_special_tokens=True) == "".join(TAG_TOKENS)


def test_digits_and_operators_never_merge(shipped_tokenizer):
    # 12 characters of digits and operators between two tags: 14 tokens.
    assert len(ids(shipped_tokenizer, "<think>12*34=8+-00=</think>")) == 14


def test_every_id_has_text_so_the_model_can_sample_none_without(shipped_policy):
    tokenizer, config = shipped_policy.tokenizer, shipped_policy.model.config
    assert config.vocab_size == len(tokenizer) == 340
    assert shipped_policy.model.get_output_embeddings().weight.shape == (340, 64)
    assert all(tokenizer.decode([token]) for token in range(config.vocab_size))


def test_a_conversation_is_written_with_control_tokens(shipped_tokenizer):
    messages = [{"role": "user", "content": "Solve."}, {"role": "assistant", "content": "\\boxed{7}"}]
    written = shipped_tokenizer.apply_chat_template(messages, tokenize=False)
    assert written == "<|user|>Solve.<|end|><|assistant|>\\boxed{7}<|end|>"
    asked = shipped_tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|user|>Solve.<|end|><|assistant|>"


def test_merges_are_learnt_from_words_and_spend_none_on_tags():
    vocabulary = TOKENIZER.get_vocab()
    assert "Compute" in "".join(vocabulary)
    assert not [token for token in vocabulary if ("think" in token or "oxed" in token) and token not in TAG_TOKENS]


def test_equal_texts_give_an_equal_tokenizer():
    assert train_tokenizer(TEXTS * 20).backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()


def test_the_shipped_tokenizer_is_the_one_the_recipe_makes(shipped_tokenizer):
    assert make_tokenizer(0).get_vocab() == shipped_tokenizer.get_vocab()


def test_the_shipped_tokenizer_pads_and_cuts_nothing_unasked():
    # The fast tokenizer keeps the padding of its last call, and saving would write it into the file.
    stored = json.loads((checkpoint_dir() / "tokenizer.json").read_text(encoding="utf-8"))
    assert stored["padding"] is None
    assert stored["truncation"] is None
