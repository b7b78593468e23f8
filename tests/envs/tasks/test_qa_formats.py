"""Published question-answering formats: every edition gives the same question, golds and evidence."""

from __future__ import annotations

import json

import pytest

from srpo_envs.errors import DatasetError
from srpo_envs.tasks.qa_formats import read_golds, read_info, read_question

CONTEXT = {"title": ["A", "B", "C"], "sentences": [["a."], ["b."], ["c."]]}
ROWS = {
    "nq open": ({"question": "Q?", "answer": ["14 December 1972 UTC", "December 1972"]}, 2),
    "nq flashrag": ({"id": "test_0", "question": "Q?", "golden_answers": ["14 December 1972 UTC"], "metadata": {}}, 1),
    "dpr": ({"question": "Q?", "answers": ["14 December 1972 UTC"]}, 1),
    "squad": ({"question": "Q?", "answers": {"text": ["14 December 1972 UTC"], "answer_start": [3]}}, 1),
    "triviaqa": (
        {
            "question_id": "tc_1",
            "question": "Q?",
            "answer": {
                "value": "14 December 1972 UTC",
                "aliases": ["Dec 14", "14 December 1972 UTC"],
                "normalized_aliases": ["dec 14"],
                "normalized_value": "14 december 1972 utc",
                "type": "WikipediaEntity",
            },
        },
        3,
    ),
    "triviaqa of its authors": (
        {
            "QuestionId": "tc_1",
            "Question": "Q?",
            "Answer": {"Value": "14 December 1972 UTC", "Aliases": ["Dec 14"], "NormalizedAliases": ["dec 14"]},
        },
        3,
    ),
    "popqa": (
        {"id": 1, "question": "Q?", "obj": "x", "possible_answers": json.dumps(["14 December 1972 UTC", "Dec"])},
        2,
    ),
    "popqa as a list": ({"question": "Q?", "possible_answers": ["14 December 1972 UTC"]}, 1),
    "hotpotqa": ({"_id": "5a", "question": "Q?", "answer": "14 December 1972 UTC", "level": "hard"}, 1),
    "musique": (
        {"question": "Q?", "answer": "14 December 1972 UTC", "answer_aliases": ["Dec", ""], "answerable": True},
        2,
    ),
    "bamboogle": ({"Question": "Q?", "Answer": "14 December 1972 UTC"}, 1),
    "bamboogle in lists": ({"id": "test_71", "Question": " Q?\n", "answer": ["14 December 1972 UTC\n"]}, 1),
    "search-r1 parquet": (
        {
            "question": "Q?",
            "prompt": [{"role": "user", "content": "long instructions"}],
            "reward_model": {"style": "rule", "ground_truth": {"target": ["14 December 1972 UTC"]}},
        },
        1,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_published_format_gives_question_and_golds(name):
    row, num_golds = ROWS[name]
    golds = read_golds(row)
    assert read_question(row) == "Q?"
    assert golds[0] == "14 December 1972 UTC"
    assert len(golds) == num_golds


@pytest.mark.parametrize(("value", "gold"), [(1999, "1999"), (1999.0, "1999"), (4.5, "4.5"), ([0], "0")])
def test_numbers_are_read_as_their_text(value, gold):
    assert read_golds({"answer": value}) == (gold,)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Q?"}, "no answer: expected one of the fields golden_answers, .*the row has question"),
        ({"answer": ""}, "field 'answer' holds no answer: ''"),
        ({"answer": [" "]}, "field 'answer' holds no answer"),
        ({"golden_answers": []}, "field 'golden_answers' holds no answer"),
        ({"answer": None}, "no answer: expected one of the fields"),
        ({"answer": True}, "field 'answer' holds no answer: True"),
        ({"answer": ["x", None]}, "field 'answer' holds no answer: None"),
        ({"answer": float("nan")}, "field 'answer' holds no finite number"),
        ({"answer": {"value": "<unk>", "aliases": []}}, "field 'answer' holds no answer"),
        ({"answer": {"type": "?"}}, "field 'answer' holds none of value, aliases"),
        ({"possible_answers": "[oops"}, "field 'possible_answers' holds no JSON list"),
        ({"answer": "x", "answerable": False}, "marked as not answerable"),
    ],
)
def test_a_row_without_a_usable_answer_says_why(row, message):
    with pytest.raises(DatasetError, match=message):
        read_golds(row)


@pytest.mark.parametrize("row", [{}, {"question": " "}, {"question": ["Q?"]}, {"question": None, "prompt": "Q?"}])
def test_a_row_without_a_question_says_so(row):
    with pytest.raises(DatasetError, match="no question"):
        read_question(row)


FACTS = [["A", 0], ["C", 1], ["A", 2]]
EVIDENCE = {
    "local file": {"supporting_titles": ["A", "C", "A"]},
    "hotpotqa": {"supporting_facts": FACTS},
    "hotpotqa on the hub": {"supporting_facts": {"title": ["A", "C", "A"], "sent_id": [0, 1, 2]}, "context": CONTEXT},
    "list of records": {"supporting_facts": [{"title": title, "sent_id": number} for title, number in FACTS]},
    "flashrag": {"metadata": {"supporting_facts": {"title": ["A", "C", "A"], "sent_id": [0, 1, 2]}}},
    "musique": {
        "paragraphs": [
            {"idx": index, "title": title, "paragraph_text": "...", "is_supporting": title != "B"}
            for index, title in enumerate("ABCA")
        ]
    },
    "musique in columns": {"paragraphs": {"title": ["A", "B", "C"], "is_supporting": [True, False, True]}},
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_every_published_format_gives_the_titles_of_its_evidence_once(name):
    assert read_info(EVIDENCE[name])["gold_titles"] == ("A", "C")


@pytest.mark.parametrize("row", [{}, {"metadata": None}, {"supporting_facts": "[]"}, {"supporting_facts": []}])
def test_a_row_that_names_no_evidence_gives_none(row):
    assert read_info(row) == {}


def test_what_a_row_says_of_itself_is_kept_wherever_it_stands():
    row = {
        "_id": "a",
        "answer": "x",
        "context": CONTEXT,
        "question_decomposition": [{"question": "1"}, {"question": "2"}, {"question": "#1"}],
        "metadata": {"type": "bridge", "level": "hard", "context": CONTEXT},
    }
    assert read_info(row) == {"_id": "a", "type": "bridge", "level": "hard", "hops": 3}


def test_the_shipped_format_gives_everything_scoring_needs():
    row = {
        "id": "f1",
        "gold_passage_ids": ["7", "12", "7"],
        "hops": 2,
        "type": "bridge",
        "queries": ["first", "second"],
    }
    expected = {"gold_passage_ids": ("7", "12"), "queries": (("first",), ("second",))}
    assert read_info(row) == {"id": "f1", "hops": 2, "type": "bridge", **expected}


def test_queries_may_be_grouped_by_turn():
    assert read_info({"queries": [["a", "b"], ["c"]]})["queries"] == (("a", "b"), ("c",))


@pytest.mark.parametrize(
    "fields",
    [
        {"gold_passage_ids": "7"},
        {"gold_passage_ids": [None]},
        {"supporting_titles": "A"},
        {"queries": "q"},
        {"queries": [["a"], "b"]},
        {"hops": 0},
        {"hops": True},
        {"hops": "2"},
    ],
)
def test_a_damaged_field_is_named(fields):
    with pytest.raises(DatasetError, match=f"field '{next(iter(fields))}': expected"):
        read_info(fields)
