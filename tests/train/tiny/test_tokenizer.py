from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_train.tiny import checkpoint_dir
from srpo_train.tiny.arithmetic.curriculum import ARITHMETIC
from srpo_train.tiny.make import CURRICULA, make_tokenizer
from srpo_train.tiny.tokenizer import CONTROL_TOKENS, TAG_TOKENS, train_tokenizer

TEXTS = ["Compute 3*7-4 from left to right, mod 10.\nSolve.", "<think>3*7=1-4=7</think>\\boxed{7}"]
WORDS = (" Bako", " boss")
TOKENIZER = train_tokenizer(TEXTS * 20, pieces=ARITHMETIC.pieces, words=WORDS)

anything = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            [*TAG_TOKENS, *WORDS, " Bakolo", "3", "*", "=", " ", "\n", "Solve", "{", "ä", "…", "\0", "\r\n"]
        )
    ).map("".join),
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


@pytest.mark.parametrize("name", CURRICULA)
def test_every_id_has_text_so_the_model_can_sample_none_without(load_shipped, name):
    policy = load_shipped(name)
    tokenizer, config = policy.tokenizer, policy.model.config
    assert config.vocab_size == len(tokenizer)
    assert policy.model.get_output_embeddings().weight.shape == (len(tokenizer), 64)
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
    again = train_tokenizer(TEXTS * 20, pieces=ARITHMETIC.pieces, words=WORDS)
    assert again.backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()


def test_words_are_single_tokens_and_no_merge_is_spent_on_them():
    tokenizer = train_tokenizer(["The boss of Bako is Demi."] * 50, pieces=r" ?[A-Za-z]+", words=WORDS)
    assert len(ids(tokenizer, " boss of Bako")) == 3
    assert not [token for token in tokenizer.get_vocab() if token in ("Bako", "ĠBako", "Ġboss", "oss")]
    assert len(ids(tokenizer, " Demi")) == 1  # frequent enough to be learnt


def test_merges_stay_within_pieces():
    tokenizer = train_tokenizer(["of the boss of the boss"] * 50, pieces=r" ?[A-Za-z]+")
    assert len(ids(tokenizer, " of the boss")) == 3


@pytest.mark.parametrize("name", CURRICULA)
def test_the_shipped_tokenizer_is_the_one_the_recipe_makes(load_shipped, name):
    assert make_tokenizer(CURRICULA[name], 0).get_vocab() == load_shipped(name).tokenizer.get_vocab()


@pytest.mark.parametrize("name", CURRICULA)
def test_the_shipped_tokenizer_pads_and_cuts_nothing_unasked(name):
    # The fast tokenizer keeps the padding of its last call, and saving would write it into the file.
    stored = json.loads((checkpoint_dir(name) / "tokenizer.json").read_text(encoding="utf-8"))
    assert stored["padding"] is None
    assert stored["truncation"] is None
