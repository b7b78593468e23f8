"""The bodies of answers: written for the clients of Search-R1, verl and Dr. MAS, read from servers of all kinds."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.serving.protocol import read_answer, render_answer
from srpo_envs.errors import RetrieverError
from srpo_envs.search import Passage

PERU = Passage(id="7", title="Peru", text="The capital of Peru is Lima.", score=7.25)
DOCUMENT = {
    "id": "7",
    "title": "Peru",
    "text": "The capital of Peru is Lima.",
    "contents": '"Peru"\nThe capital of Peru is Lima.',
}


def read(result, num_queries=1, top_k=3):
    return read_answer(json.dumps({"result": result}).encode(), num_queries, top_k)


def test_with_scores_a_document_stands_beside_its_score():
    body = json.loads(render_answer([[PERU], []], with_scores=True))
    assert body == {"result": [[{"document": DOCUMENT, "score": 7.25}], []]}


def test_without_scores_documents_stand_alone():
    assert json.loads(render_answer([[PERU]], with_scores=False)) == {"result": [[DOCUMENT]]}


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_not_sent(score):
    with pytest.raises(ValueError, match="JSON compliant"):
        render_answer([[Passage(id="1", title="", text="x", score=score)]], with_scores=True)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PASSAGES = st.builds(Passage, id=TEXTS, title=TEXTS, text=TEXTS, score=st.floats(allow_nan=False, allow_infinity=False))


@given(st.lists(st.lists(PASSAGES, max_size=3, unique_by=lambda passage: passage.id), max_size=4))
def test_passages_come_back_as_they_were(found):
    assert read_answer(render_answer(found, with_scores=True), len(found), 3) == found


def test_search_r1_dense_rows_hold_id_and_contents():
    assert read([[{"document": {"id": 7, "contents": DOCUMENT["contents"]}, "score": 7.25}]]) == [[PERU]]


def test_search_r1_bm25_documents_have_no_id_and_get_one_from_their_words():
    without_id = {name: value for name, value in DOCUMENT.items() if name != "id"}
    ((first,),) = read([[without_id]])
    assert (first.title, first.text, first.score) == ("Peru", PERU.text, 0.0)
    assert len(first.id) == 16
    assert read([[without_id]]) == [[first]]
    ((other,),) = read([[without_id | {"text": "Another."}]])
    assert other.id != first.id


def test_the_last_document_repeated_counts_once():
    # Search-R1's dense server with k beyond the size of its corpus
    rows = [{"document": {"id": name, "contents": name}, "score": 1.0} for name in ("a", "b", "b")]
    ((first, second),) = read([rows])
    assert (first.id, second.id) == ("a", "b")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>502 Bad Gateway</html>", "expected JSON, got b'<html>502"),
        (b'{"result": [[{"docu', "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "expected a 'result'"),
        (b'{"result": {"a": 1}}', "expected a 'result'"),
        (b'{"result": ["text"]}', "expected a 'result'"),
        (b'{"error": "no"}', "expected a 'result'"),
    ],
)
def test_other_bodies_are_errors(body, message):
    with pytest.raises(RetrieverError, match=message):
        read_answer(body, 1, 3)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "expected 1 lists of documents, got 0"),
        ([[], []], "expected 1 lists of documents, got 2"),
        ([[DOCUMENT, DOCUMENT, DOCUMENT, DOCUMENT]], "expected at most 3 documents for each query, got 4"),
        ([["text"]], "expected a document with 'contents'"),
        ([[None]], "expected a document with 'contents'"),
        ([[{"title": "Peru"}]], "expected a document with 'contents'"),
        ([[{"contents": 3}]], "expected a document with 'contents'"),
        ([[{"document": None, "score": 1.0}]], "expected a document with 'contents'"),
        ([[{"document": DOCUMENT, "score": "high"}]], "expected a finite score, got 'high'"),
        ([[{"document": DOCUMENT, "score": None}]], "expected a finite score"),
        ([[{"document": DOCUMENT, "score": math.nan}]], "expected a finite score"),
        ([[{"document": DOCUMENT, "score": True}]], "expected a finite score"),
        ([[{"document": DOCUMENT, "score": 10**400}]], "expected a finite score"),
        ([[DOCUMENT | {"id": None}]], "expected the id of a document"),
    ],
)
def test_wrong_counts_and_malformed_documents_are_errors(result, message):
    with pytest.raises(RetrieverError, match=message):
        read(result)
