"""Traces: the format, nesting, and what is read from them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import RecordError
from srpo_train.throughput.recorder import Span
from srpo_train.throughput.trace import check_trace, find_trace, read_trace, time_use, trace_path, write_trace


def span(name, begun_s, end_s, track="trainer", **args):
    return Span(name=name, category="c", track=track, begun_s=begun_s, duration_s=end_s - begun_s, args=args)


STEP = [
    span("step 7", 1000.0, 1010.0),
    span("backward", 1001.0, 1005.0, rows=3),
    span("pass", 1001.0, 1002.0),
    span("pass", 1002.0, 1004.0),
    span("generate", 1005.0, 1009.0, track="engine team"),
    span("move", 1006.0, 1007.0, track="environment 10"),
    span("move", 1006.0, 1008.0, track="environment 2"),
]


@pytest.fixture
def path(tmp_path):
    path = trace_path(tmp_path, 7)
    write_trace(path, [STEP, [span("step 7", 1000.5, 1009.0)]], step=7)
    return path


def test_a_written_trace_is_one_that_viewers_read(path):
    document = json.loads(path.read_text())
    check_trace(document)
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    first = next(event for event in spans if event["name"] == "backward")
    assert first == {
        "name": "backward", "cat": "c", "ph": "X", "ts": 1e6, "dur": 4e6, "pid": 0, "tid": 0, "args": {"rows": 3},
    }  # fmt: skip
    assert [event["ts"] for event in spans if event["pid"] == 1] == [0.5e6]
    assert document["otherData"] == {"step": 7, "begun_s": 1000.0}
    assert path.name == "step-000007.json"


def test_every_rank_engine_and_worker_has_its_track(path):
    events = json.loads(path.read_text())["traceEvents"]
    names = [(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    assert names == [
        (0, "trainer"), (0, "engine team"), (0, "environment 2"), (0, "environment 10"), (1, "trainer"),
    ]  # fmt: skip
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"rank 0", "rank 1"}


def test_time_is_summed_by_who_and_what(path):
    found = {(use.track, use.name): use for use in time_use(read_trace(path))}
    step, backward, moves = found["trainer", "step 7"], found["trainer", "backward"], found["environment", "move"]
    # Two ranks: 10 and 8.5 s, of which backward takes 4.
    assert (step.num_calls, step.total_s, step.own_s) == (2, 18.5, 14.5)
    assert (backward.total_s, backward.own_s) == (4.0, 1.0)
    assert (moves.num_calls, moves.total_s) == (2, 3.0)


def test_spans_that_overlap_get_tracks_of_their_own(tmp_path):
    path = tmp_path / "t.json"
    write_trace(path, [[span("a", 0.0, 2.0, track="engine x"), span("b", 1.0, 3.0, track="engine x")]], step=1)
    names = [e["args"]["name"] for e in read_trace(path)["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["engine x", "engine x (2)"]
    assert {use.track for use in time_use(read_trace(path))} == {"engine x"}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.sampled_from(["trainer", "engine"])), max_size=25))
def test_any_spans_make_a_trace_that_is_nested(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    write_trace(path, [[span("s", b, b + d, track=track) for b, d, track in drawn]], step=1)
    document = read_trace(path)
    assert sum(event["ph"] == "X" for event in document["traceEvents"]) == len(drawn)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"ts": -1.0}, "ts and dur"),
        ({"dur": 99e6}, "outlasts"),
        ({"pid": "0"}, "pid to be int"),
        ({"tid": 99}, "no name"),
        ({"ph": "Q"}, "complete span"),
    ],
)
def test_what_viewers_would_show_wrongly_is_refused(path, change, problem):
    document = json.loads(path.read_text())
    next(event for event in document["traceEvents"] if event["name"] == "backward").update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=problem):
        read_trace(path)


def test_the_newest_trace_is_found(tmp_path, path):
    write_trace(trace_path(tmp_path, 12), [STEP], step=12)
    assert find_trace(tmp_path).name == "step-000012.json"
    assert find_trace(tmp_path, 7) == path
    with pytest.raises(RecordError, match="step 3 is not traced; record one"):
        find_trace(tmp_path, 3)
    with pytest.raises(RecordError, match="no step traced"):
        find_trace(tmp_path / "other")


def test_a_file_that_is_no_trace_is_said_to_be_none(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("{")
    with pytest.raises(RecordError, match="not a trace"):
        read_trace(path)
