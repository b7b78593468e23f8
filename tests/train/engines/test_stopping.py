from __future__ import annotations

import numpy as np
import pytest

from srpo_train.engines.stopping import StopTexts

STOPS = [("a>",), ("é",), ("…",), ("b>\n",), ("</a",), (">\n",), (" ",), ("d ",), ("ab", "cd"), ("<think>",), ("0101",)]


@pytest.fixture(scope="module")
def vocabulary_size(tiny_policy):
    return len(tiny_policy.tokenizer)


@pytest.fixture(scope="module")
def stop_texts(tiny_policy, vocabulary_size):
    return StopTexts(tiny_policy.decode, vocabulary_size)


def first_stop(stop_texts, token_ids, stops):
    """Number of tokens at which a decoding loop would end, as the engine asks."""
    completing = stop_texts.completing(stops)
    for count in range(1, len(token_ids) + 1):
        if completing[token_ids[count - 1]] and stop_texts.reached(token_ids[:count], stops):
            return count
    return None


def first_stop_by_decoding_everything(decode, token_ids, stops):
    for count in range(1, len(token_ids) + 1):
        if any(stop in decode(token_ids[:count]) for stop in stops):
            return count
    return None


@pytest.mark.parametrize("stops", STOPS, ids=repr)
def test_ends_at_the_token_that_completes_a_stop_text(tiny_policy, stop_texts, vocabulary_size, stops):
    random = np.random.default_rng(0)
    found = 0
    for _ in range(60):
        # Few distinct tokens a response, those of the stop text among them, so that stop texts do occur.
        wanted = tiny_policy.tokenizer("".join(stops), add_special_tokens=False)["input_ids"]
        choices = [*wanted, *wanted, *random.integers(0, vocabulary_size, 4).tolist()]
        token_ids = random.choice(choices, 30).tolist()
        expected = first_stop_by_decoding_everything(tiny_policy.decode, token_ids, stops)
        assert first_stop(stop_texts, token_ids, stops) == expected
        found += expected is not None
    assert found >= 5


def test_a_stop_text_spelled_by_several_tokens_is_found_at_its_last(tiny_policy, stop_texts):
    token_ids = tiny_policy.tokenizer.convert_tokens_to_ids(["c", "<", "/", "a", "b>"])
    assert first_stop(stop_texts, token_ids, ("</ab>",)) == 5


def test_a_stop_text_may_end_inside_a_token(tiny_policy, stop_texts):
    token_ids = tiny_policy.tokenizer.convert_tokens_to_ids(["a", ">Ċ", "c"])
    assert tiny_policy.decode(token_ids) == "a>\nc"
    assert first_stop(stop_texts, token_ids, ("a>",)) == 2


def test_a_character_of_several_tokens_is_found_when_it_is_whole(tiny_policy, stop_texts):
    token_ids = tiny_policy.tokenizer("…", add_special_tokens=False)["input_ids"]
    assert len(token_ids) == 3  # three bytes, three tokens
    assert first_stop(stop_texts, [*token_ids, *token_ids], ("…",)) == 3


def test_few_tokens_are_candidates_for_a_plain_stop_text(tiny_policy, stop_texts):
    candidates = {tiny_policy.decode([token]) for token in np.flatnonzero(stop_texts.completing(("</c>",)))}
    assert {piece for piece in candidates if "\ufffd" not in piece} == {">", "b>", ">\n", "<think>", "</think>"}
