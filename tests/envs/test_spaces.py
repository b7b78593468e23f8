"""`FreeText` holds every string and works wherever gymnasium takes a space (br-031)."""

from __future__ import annotations

import json
import pickle

import gymnasium
import pytest
from gymnasium.spaces import Dict, Discrete
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array, iterate

from srpo_envs.spaces import FreeText

TEXTS = ["", " ", "\n", "two words", r"\boxed{\frac{1}{2}}", "答案是七", "🙂\u200b", "x" * 100_000, "\ud800"]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:20]))
def test_every_string_is_contained(text):
    assert text in FreeText()


@pytest.mark.parametrize("text", TEXTS[:-1], ids=lambda text: ascii(text[:20]))
def test_gymnasiums_own_text_space_would_refuse_most_of_them(text):
    # The reason FreeText exists; when gymnasium's Text accepts all of these it can go.
    refused = text not in gymnasium.spaces.Text(1_000)
    assert refused


@pytest.mark.parametrize("other", [7, None, b"bytes", ["a"], 1.5])
def test_nothing_but_strings_is_contained(other):
    assert other not in FreeText()


def test_samples_are_contained_and_can_be_written_to_a_file():
    space = FreeText(seed=0)
    samples = [space.sample() for _ in range(300)]
    assert all(sample in space for sample in samples)
    assert [sample.encode("utf-8").decode("utf-8") for sample in samples] == samples


def test_samples_show_what_breaks_text_handling():
    space = FreeText(seed=0)
    samples = [space.sample() for _ in range(300)]
    joined = "".join(samples)
    assert "" in samples
    assert all(piece in joined for piece in (" ", "\n", "\\boxed{", "答案", "🙂"))


def test_the_same_seed_gives_the_same_samples_and_another_seed_others():
    first, second, third = FreeText(seed=3), FreeText(seed=3), FreeText(seed=4)
    samples = [first.sample() for _ in range(20)]
    assert [second.sample() for _ in range(20)] == samples
    assert [third.sample() for _ in range(20)] != samples


def test_a_mask_is_refused():
    with pytest.raises(ValueError, match="neither mask nor probability"):
        FreeText().sample(mask=(3, None))


def test_all_free_texts_are_equal_and_differ_from_other_spaces():
    assert FreeText(seed=1) == FreeText(seed=2)
    assert FreeText() != Discrete(2)


def test_pickling_keeps_space_and_stream():
    space = FreeText(seed=5)
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space
    assert [copy.sample() for _ in range(5)] == [space.sample() for _ in range(5)]


def test_json_round_trip():
    space = FreeText()
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(TEXTS)))) == TEXTS


def test_a_batch_of_texts_goes_there_and_back():
    single = Dict({"prompt": FreeText(), "active": Discrete(2)})
    batched = batch_space(single, 3)
    items = [{"prompt": "a b", "active": 1}, {"prompt": "", "active": 0}, {"prompt": "答", "active": 1}]
    joined = concatenate(single, items, create_empty_array(single, 3))
    assert joined in batched
    assert joined["prompt"] == ("a b", "", "答")
    # Texts are walked whole, not character by character.
    assert [item["prompt"] for item in iterate(batched, joined)] == ["a b", "", "答"]


def test_an_empty_batch_is_inside_the_batched_space():
    assert create_empty_array(FreeText(), 2) in batch_space(FreeText(), 2)


def test_differing_batches_of_texts_are_batches_of_texts():
    assert batch_differing_spaces([FreeText(), FreeText()]) == batch_space(FreeText(), 2)
