"""Question-answering match: SQuAD normalisation, best alias, and sides that normalise to nothing."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.grading import normalise_text, score_qa
from srpo_envs.grading.qa_match import fold_unicode


@pytest.mark.parametrize(
    ("prediction", "golds", "is_match", "f1"),
    [
        ("The Rolling Stones", ["rolling stones"], True, 1.0),
        ("U.S.A.", "usa", True, 1.0),
        ("  a\tgreat   wall ", ["Great Wall"], True, 1.0),
        ("Wall Great", ["Great Wall"], False, 1.0),
        # 1 shared token of 2 and 1: 2 * 1 / 3
        ("Rome, Italy", ["Rome"], False, 2 / 3),
        # 'the' is an article: 3 tokens left, 1 shared: 2 * 1 / 4
        ("the city is Rome", ["Rome"], False, 0.5),
        # a repeated token counts once per gold occurrence: 2 * 2 / 5
        ("Rome Rome Italy", ["Rome Italy"], False, 0.8),
        ("Milan", ["Rome", "Milan"], True, 1.0),
        ("12", [12, "twelve"], True, 1.0),
        ("not Rome at all", ["Milan"], False, 0.0),
        ("", ["Rome"], False, 0.0),
        ("", [""], True, 1.0),
        ("the", ["a"], False, 0.0),
        ("!", ["!"], True, 1.0),
        ("", ["!!"], False, 0.0),
        ("Rome", [], False, 0.0),
        ("theatre", ["atre"], False, 0.0),
        ("<answer>Rome</answer>", ["Rome"], False, 0.0),
        ("yes", ["no"], False, 0.0),
    ],
)
def test_scores(prediction: str, golds: object, is_match: bool, f1: float) -> None:
    assert score_qa(prediction, golds) == (is_match, pytest.approx(f1))  # type: ignore[arg-type]


def test_normal_form_drops_case_punctuation_articles_and_blanks() -> None:
    assert normalise_text("The  Cat, an Ox; a Hen!") == "cat ox hen"


@pytest.mark.parametrize(
    ("prediction", "gold", "is_match"),
    [
        ("Beyonce\u0301", "Beyonc\u00e9", True),
        ("Beyonce", "Beyonc\u00e9", False),
        ("Beyonce\u200b\u0301", "Beyonc\u00e9", True),
        ("\u201cHeroes\u201d", "Heroes", True),
        ("\uff11\uff19\uff18\uff14", "1984", True),
        ("1943-1992", "1943\u20131992", True),
        ("1943 1992", "1943\u20131992", False),
        ("-128.6 \u00b0F", "\u2212128.6\u00a0\u00b0F", True),
        ("128.6 C", "\u2212128.6\u00a0\u00b0F", False),
        ("Zur\u00adich\u200b", "zurich", True),
        ("\u6771\u4eac", "\u6771\u4eac\u3002", True),
        ("", "\u2013", False),
        ("\u2013", "\u2014", False),
        ("\u2013", "\u2013", True),
        ("", "\u201cThe The\u201d", False),
    ],
)
def test_folding_makes_spellings_of_the_same_characters_equal(prediction: str, gold: str, is_match: bool) -> None:
    assert score_qa(prediction, [gold], fold=True)[0] == is_match
    assert score_qa(gold, [gold], fold=True) == (True, 1.0)


@given(st.text(st.characters(codec="ascii")))
def test_folding_leaves_ascii_alone(text: str) -> None:
    assert fold_unicode(text) == text


@given(st.text(), st.text())
def test_folding_never_separates_what_was_equal(prediction: str, gold: str) -> None:
    assert score_qa(prediction, [gold], fold=True)[0] >= (prediction == gold)
    assert fold_unicode(fold_unicode(gold)) == fold_unicode(gold)


def test_many_aliases_and_long_predictions_stay_fast() -> None:
    start = time.process_time()
    assert score_qa("London " * 30_000, ["Paris"] * 3_000) == (False, 0.0)
    assert time.process_time() - start < 2.0
