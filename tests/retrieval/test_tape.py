"""Tapes: what is recorded is replayed to the letter, a crash costs at most the last line, and gaps are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_servers import KnownEngine, expected

from retrieval.tape import RecordingRetriever, TapeRetriever
from srpo_envs.errors import RecordError, RetrieverError, SchemaVersionError, SearchIndexError
from srpo_envs.search import Passage, ScriptedRetriever, search_all


def record(path, *searches, engine=None):
    recorder = RecordingRetriever(engine or KnownEngine(), path)
    for queries, top_k in searches:
        recorder.search(queries, top_k)
    recorder.close()


def lines(path):
    return path.read_bytes().splitlines()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "search.jsonl"


def test_a_recorded_search_is_replayed_without_the_engine(path):
    record(path, (["a", "b"], 3), ([""], 2))
    tape = TapeRetriever.open(path)
    assert search_all(tape, ["b", "", "a"][0::2], 3) == [expected("b", 3), expected("a", 3)]
    assert tape.search([""], 2) == [[]]  # nothing found is an answer
    assert tape.fingerprint == "known-1"
    assert tape.num_passages == 6


def test_the_recorder_answers_as_the_engine_does(path):
    recorder = RecordingRetriever(KnownEngine(), path)
    assert recorder.search(["a", "b"], 2) == [expected("a", 2), expected("b", 2)]
    assert (recorder.fingerprint, recorder.num_passages) == ("known-1", 42)
    recorder.close()


def test_what_was_never_recorded_is_named(path):
    record(path, (["a"], 3), (["a"], 5))
    tape = TapeRetriever.open(path)
    with pytest.raises(RetrieverError, match=r"search.jsonl': 'capital of Peru' was never recorded with top_k 3$"):
        tape.search(["a", "capital of Peru"], 3)
    with pytest.raises(RetrieverError, match="'a' was never recorded with top_k 4; it was recorded with top_k 3, 5"):
        tape.search(["a"], 4)


def test_top_k_below_1_is_misuse(path):
    recorder = RecordingRetriever(KnownEngine(), path)
    for retriever in (recorder, TapeRetriever.open(path)):
        with pytest.raises(ValueError, match="top_k: expected at least 1, got 0"):
            retriever.search(["a"], 0)
    recorder.close()


def test_a_search_is_recorded_once_and_failures_never(path):
    engine = KnownEngine()
    recorder = RecordingRetriever(engine, path)
    recorder.search(["a", "a"], 1)
    recorder.search(["a"], 1)
    with pytest.raises(RetrieverError, match="the disk is gone"):
        recorder.search(["b", "break"], 1)
    recorder.close()
    assert len(lines(path)) == 2  # the header, and a
    assert engine.is_closed


def test_a_tape_is_continued_by_a_later_run(path):
    record(path, (["a"], 1))
    record(path, (["a", "b"], 1))
    assert len(lines(path)) == 3
    assert TapeRetriever.open(path).search(["a", "b"], 1) == [expected("a", 1), expected("b", 1)]


def test_a_tape_of_another_index_is_not_continued(path):
    record(path, (["a"], 1))
    other = KnownEngine()
    other.fingerprint = "known-2"
    with pytest.raises(SearchIndexError, match="recorded from index 'known-1', this retriever searches 'known-2'"):
        RecordingRetriever(other, path)
    assert len(lines(path)) == 2


def test_engines_without_a_fingerprint_are_recorded_too(path):
    record(path, (["a"], 1), engine=ScriptedRetriever({"a": expected("a", 1)}))
    tape = TapeRetriever.open(path)
    assert (tape.fingerprint, tape.search(["a"], 1)) == ("", [expected("a", 1)])


def test_cut_anywhere_a_tape_keeps_its_whole_lines_and_can_be_continued(path):
    record(path, (["a"], 1), (["b"], 1))
    whole = path.read_bytes()
    begin_of_b = whole.index(b'{"query":"b"')
    for length in range(begin_of_b, len(whole)):
        path.write_bytes(whole[:length])
        tape = TapeRetriever.open(path)
        assert tape.search(["a"], 1) == [expected("a", 1)]
        with pytest.raises(RetrieverError, match="'b' was never recorded"):
            tape.search(["b"], 1)
        record(path, (["b"], 1))
        assert path.read_bytes() == whole


def test_a_tape_whose_header_was_cut_begins_anew(path):
    record(path, (["a"], 1))
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    record(path, (["a"], 1))
    assert path.read_bytes() == whole


KILLED = """
import os, signal, sys
from search_servers import KnownEngine
from retrieval.tape import RecordingRetriever

recorder = RecordingRetriever(KnownEngine(), sys.argv[1])
recorder.search([f"q{number}" for number in range(100)], 3)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("content", [b'{"mine": 1}', b"no line end", b'{"kind":"other'])
def test_a_file_of_somebody_else_is_not_recorded_over(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RecordError, match="is no tape"):
        record(path, (["a"], 1))
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path, tmp_path / "file" / "tape.jsonl"):
        with pytest.raises(RecordError, match="cannot be written"):
            RecordingRetriever(KnownEngine(), path)


def test_what_was_answered_survives_a_killed_process(path):
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, timeout=60, check=False)
    assert done.returncode == -9
    queries = [f"q{number}" for number in range(100)]
    assert TapeRetriever.open(path).search(queries, 3) == [expected(query, 3) for query in queries]


def test_threads_record_to_one_tape(path):
    recorder = RecordingRetriever(KnownEngine(), path)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: recorder.search([f"q{number}"], 3), range(200)))
    recorder.close()
    assert len(lines(path)) == 201
    assert TapeRetriever.open(path).search(["q7"], 3) == [expected("q7", 3)]


def test_a_tape_that_cannot_be_written_is_an_error_and_stays_readable(path):
    record(path, (["a"], 1))
    recorder = RecordingRetriever(KnownEngine(), path)

    class Full:
        """A disk with room for ten more bytes."""

        def __init__(self, file):
            self.file, self.close = file, file.close

        def write(self, data):
            return self.file.write(data[:10])

    recorder._file = Full(recorder._file)
    with pytest.raises(RetrieverError, match=r"10 of .* bytes fit; is the disk full"):
        recorder.search(["b"], 1)
    with pytest.raises(RetrieverError, match="cannot be written"):
        recorder.search(["c"], 1)
    assert TapeRetriever.open(path).search(["a"], 1) == [expected("a", 1)]


HEADER = b'{"kind":"srpo-search-tape","version":1,"fingerprint":""}\n'


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", RecordError, "is no tape"),
        (b'{"id": "1", "contents": "x"}\n', RecordError, "is no tape: expected a first line"),
        (b"PK\x03\x04\n", RecordError, "line 1: not JSON"),
        (HEADER.replace(b"1", b"2"), SchemaVersionError, "has version 2, this program reads 1"),
        (HEADER + b"damaged\n{}\n", RecordError, "line 2: not JSON"),
        (HEADER + b"[]\n", RecordError, "line 2: expected an object, got list"),
        (HEADER + b'{"query":"a","passages":[]}\n', RecordError, "line 2: expected 'query', 'top_k' and 'passages'"),
        (HEADER + b'{"query":"a","top_k":1,"passages":[{"id":"1"}]}\n', RecordError, "line 2: expected"),
        (HEADER + b'{"query":["a"],"top_k":1,"passages":[]}\n', RecordError, "line 2: expected a query and"),
        (HEADER + b'{"query":"a","top_k":1,"passages":[{"id":1,"title":"","text":""}]}\n', RecordError, "distinct"),
    ],
)
def test_damaged_files_and_others_are_named(tmp_path, content, error, message):
    path = tmp_path / "tape.jsonl"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        TapeRetriever.open(path)


def test_a_missing_tape_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"none.jsonl' cannot be read"):
        TapeRetriever.open(tmp_path / "none.jsonl")


PASSAGES = st.builds(
    Passage, id=st.text(), title=st.text(), text=st.text(), score=st.floats(allow_nan=False, allow_infinity=False)
)
ANSWERS = st.dictionaries(st.text(), st.lists(PASSAGES, max_size=3, unique_by=lambda passage: passage.id), max_size=4)


@settings(max_examples=50, deadline=None)
@given(ANSWERS)
def test_any_text_and_score_is_replayed_to_the_letter(tmp_path_factory, answers):
    path = tmp_path_factory.mktemp("tape") / "tape.jsonl"
    record(path, (list(answers), 3), engine=ScriptedRetriever(answers))
    assert TapeRetriever.open(path).search(list(answers), 3) == list(answers.values())
    assert all(json.loads(line) for line in lines(path))
