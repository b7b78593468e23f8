"""Records: JSON Lines both ways, and what damaged or newer files say."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle

import pytest
from factories import APPROVE, REJECT, Lookup, NumberTasks, answer, boxed, make_episode, make_event, make_member, play
from factories import with_tokens as fill_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.errors import RecordError, SchemaVersionError
from srpo_envs.records import (
    SCHEMA_VERSION,
    MemberRecord,
    ToolCall,
    episode_to_lines,
    frozen_json,
    read_episodes,
    write_episodes,
)
from srpo_envs.workflows.solver_verifier import SolverVerifier


def play_with_tokens(seed: int):
    """A routed episode with tokens, a malformed verdict and two routes."""
    env = SolverVerifier(NumberTasks(), variant="routed")
    active = env.reset(seed=seed)
    texts = {"router": "<route>1, 3</route>", "solver": boxed(4), "verifier": REJECT, "revision": "none"}
    while active is not None:
        outputs = answer(active, {**texts, "aggregator": boxed(4)})
        active = env.step(fill_tokens(outputs, version=3, seed=seed)).next
    return env.episode


def lines_of(path):
    return path.read_text().splitlines()


# --- round trip ---------------------------------------------------------------------------------------------------


def test_episodes_come_back_equal(tmp_path):
    tool = Lookup(NumberTasks(), lambda query: {"docs": [query, {"score": 0.5}]})
    episodes = [
        play_with_tokens(1),
        play(tool, {"searcher": ["one"], "answerer": boxed(2)}, seed=2),
        make_episode(),
    ]
    write_episodes(tmp_path / "events.jsonl", episodes)
    assert list(read_episodes(tmp_path / "events.jsonl")) == episodes


def test_timings_come_back_too(tmp_path):
    episode = play_with_tokens(1)
    write_episodes(tmp_path / "events.jsonl", [episode])
    (back,) = read_episodes(tmp_path / "events.jsonl")
    assert [m.timings for e in back.events for m in e.members] == [m.timings for e in episode.events for m in e.members]
    assert back.events[0].members[0].timings["generate_s"] > 0
    assert back.events[-1].tool_calls[0].duration_s == episode.events[-1].tool_calls[0].duration_s


def test_measured_times_do_not_make_records_differ():
    assert make_member(timings={"generate_s": 1.0}) == make_member(timings={"generate_s": 2.0})
    call = ToolCall(name="search", arguments={}, result=1, duration_s=1.0)
    assert call == dataclasses.replace(call, duration_s=2.0)


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\u2028\u2029\x85\r\n", "\\boxed{ \N{GRINNING FACE} }", ""])
def test_any_text_survives_storage(tmp_path, text):
    event = make_event(1, members=(make_member(text=text, prompt=text + "?"),))
    episode = make_episode((1,), events=(event,))
    write_episodes(tmp_path / "events.jsonl", [episode])
    assert list(read_episodes(tmp_path / "events.jsonl")) == [episode]
    assert len(lines_of(tmp_path / "events.jsonl")) == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(parsed=json_values, logprobs=st.lists(st.floats(max_value=0, allow_infinity=False), max_size=5))
def test_any_json_value_survives_storage(tmp_path_factory, parsed, logprobs):
    member = make_member(
        length=len(logprobs), parsed=frozen_json(parsed), behavior_logprobs=tuple(logprobs), malformed_reason="reason"
    )
    episode = make_episode((1,), events=(make_event(1, members=(member,)),))
    path = tmp_path_factory.mktemp("records") / "events.jsonl"
    write_episodes(path, [episode])
    assert list(read_episodes(path)) == [episode]


def test_the_file_is_one_line_per_episode_and_event_readable_by_any_tool(tmp_path):
    episode = make_episode((3, 1, 1))
    write_episodes(tmp_path / "events.jsonl", [episode])
    rows = [json.loads(line) for line in lines_of(tmp_path / "events.jsonl")]
    assert [row["kind"] for row in rows] == ["episode", "event", "event", "event"]
    assert {row["schema"] for row in rows} == {SCHEMA_VERSION}
    assert rows[0]["events"] == 3
    assert [member["member_index"] for member in rows[1]["members"]] == [0, 1, 2]


def test_an_interrupted_write_leaves_no_file(tmp_path):
    def stopping():
        yield make_episode()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_episodes(tmp_path / "events.jsonl", stopping())
    assert not (tmp_path / "events.jsonl").exists()


def test_an_interrupted_write_keeps_the_file_that_was_there(tmp_path):
    path = tmp_path / "events.jsonl"
    write_episodes(path, [make_episode()])
    before = path.read_bytes()

    def stopping():
        yield make_episode(episode_id="other")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_episodes(path, stopping())
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_log_probability_that_is_no_number_cannot_be_written(value):
    episode = make_episode((1,), events=(make_event(1, members=(make_member(behavior_logprobs=(value,)),)),))
    with pytest.raises(RecordError, match=r"'ep/e0' cannot be written as JSON"):
        list(episode_to_lines(episode))


def test_records_pickle():
    episode = play_with_tokens(1)
    assert pickle.loads(pickle.dumps(episode)) == episode


# --- damaged files ------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "events.jsonl"
    write_episodes(path, [make_episode((2, 1), episode_id="a"), make_episode((2, 1), episode_id="b")])
    return path


def edit(path, number, change):
    """Apply `change` to the decoded line `number` (from 1)."""
    lines = lines_of(path)
    row = json.loads(lines[number - 1])
    change(row)
    lines[number - 1] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "content", "message"),
    [
        (2, '{"schema": 1, "kind": "ev', "not a JSON line"),
        (3, "", "not a JSON line"),
        (5, "[1]", "expected an object with a 'schema' field"),
        (1, "{}", "expected an object with a 'schema' field"),
        (4, '{"schema": 1, "kind": "epsiode"}', "expected kind 'episode' or 'event', got 'epsiode'"),
    ],
)
def test_a_damaged_line_is_named_by_file_and_number(stored, line, content, message):
    lines = lines_of(stored)
    lines[line - 1] = content
    stored.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=message) as raised:
        list(read_episodes(stored))
    assert f"{stored}:{line}:" in str(raised.value)


def test_bytes_that_are_no_text_are_named(stored):
    stored.write_bytes(stored.read_bytes().replace(b'"a/e0"', b'"\xff\xfe"'))
    with pytest.raises(RecordError, match=r"events\.jsonl:2: not a JSON line"):
        list(read_episodes(stored))


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (2, lambda row: row.pop("reward"), r":2: incomplete Event: .*'reward'"),
        (2, lambda row: row.update(rewrd=1), r":2: Event has no field 'rewrd'"),
        (2, lambda row: row.update(cardinality="2"), r":2: Event field 'cardinality' cannot be '2'"),
        (2, lambda row: row.update(members=None), r":2: field 'members': expected a list, got None"),
        (2, lambda row: row["members"][0].pop("text"), r":2: incomplete MemberRecord: .*'text'"),
        (2, lambda row: row["members"][0].update(token_ids=7), r":2: MemberRecord field 'token_ids' cannot be 7"),
        (2, lambda row: row["members"].append(3), r":2: expected the fields of a MemberRecord, got 3"),
        (1, lambda row: row.update(task=[]), r":1: Episode field 'task' cannot be \[\]"),
        (1, lambda row: row.pop("seed"), r":1: incomplete Episode: .*'seed'"),
        (1, lambda row: row.pop("events"), r":1: episode 'a' announces None events, 2 follow"),
        (3, lambda row: row.update(episode_id="b"), r":3: event 'a/e1' stands under episode 'a'"),
    ],
)
def test_a_line_with_a_wrong_field_says_which(stored, line, change, message):
    edit(stored, line, change)
    with pytest.raises(RecordError, match=message):
        list(read_episodes(stored))


def test_a_lost_event_line_is_noticed(stored):
    lines = lines_of(stored)
    stored.write_text("\n".join(lines[:-1]) + "\n")
    reader = read_episodes(stored)
    assert next(reader).episode_id == "a"
    with pytest.raises(RecordError, match=r":4: episode 'b' announces 2 events, 1 follow; the file was cut short"):
        next(reader)


def test_a_file_that_begins_with_an_event_is_noticed(stored):
    lines = lines_of(stored)
    stored.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(RecordError, match=r":1: an event before any episode"):
        list(read_episodes(stored))


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, "2", None])
def test_a_newer_schema_asks_for_an_upgrade(stored, version):
    edit(stored, 4, lambda row: row.update(schema=version, kind="of the future", unheard_of=True))
    reader = read_episodes(stored)
    with pytest.raises(SchemaVersionError, match=r":4: written with schema .*upgrade srpo"):
        list(reader)


def test_an_empty_file_holds_no_episodes(tmp_path):
    (tmp_path / "events.jsonl").write_bytes(b"")
    assert list(read_episodes(tmp_path / "events.jsonl")) == []


# --- facts of a record --------------------------------------------------------------------------------------------


def test_an_event_is_complete_only_with_every_member_in_order():
    event = make_event(3)
    assert event.is_complete
    assert not dataclasses.replace(event, members=event.members[:2]).is_complete
    assert not dataclasses.replace(event, members=event.members[::-1]).is_complete
    assert not dataclasses.replace(event, members=(*event.members[:2], event.members[1])).is_complete
    assert not dataclasses.replace(event, cardinality=4).is_complete


def test_an_event_with_an_aborted_member_is_incomplete():
    members = (make_member(0), make_member(1, finish_reason="abort"))
    assert not make_event(2, members=members).is_complete
    assert make_event(2, members=(make_member(0), make_member(1, finish_reason="length"))).is_complete


def test_costs_count_tokens_calls_and_tools():
    search = ToolCall(name="search", arguments={}, result=[])
    grade = ToolCall(name="grade", arguments="1", result=1.0, kind="grade")
    events = (
        make_event(3, [4, 2, 7], tool_calls=(search, search)),
        make_event(1, number=1, members=(make_member(token_mask=(1, 0, 1)),), tool_calls=(grade,)),
    )
    episode = make_episode((3, 1), events=events, setup_tool_calls=(search,))
    assert episode.num_tokens == 4 + 2 + 7 + 2  # the masked token is the environment's, not the policy's
    assert episode.num_calls == 3 + 1
    assert episode.num_tool_calls == 3


def test_json_values_freeze_to_tuples_and_anything_else_is_refused():
    assert frozen_json({"a": [1, [2.5, None]], 3: "x"}) == {"a": (1, (2.5, None)), "3": "x"}
    for value in ({1, 2}, b"bytes", object(), [1, {2}], {"a": {"b": math.inf}}):
        with pytest.raises(RecordError, match="expected JSON values"):
            frozen_json(value)


def test_a_plain_output_needs_no_tokens():
    record = MemberRecord(member_index=0, agent="solver_0", role="solver", prompt="p", text="t")
    assert record.is_valid
    assert record.token_ids == record.behavior_logprobs == record.token_mask == ()


def test_a_verdict_is_stored_with_what_the_parser_read(tmp_path):
    episode = play(
        SolverVerifier(NumberTasks()), {"solver": boxed(1), "verifier": APPROVE, "aggregator": boxed(1)}, seed=0
    )
    write_episodes(tmp_path / "events.jsonl", [episode])
    (back,) = read_episodes(tmp_path / "events.jsonl")
    assert (back.events[1].members[0].parsed, back.events[1].members[0].text) == ("approve", APPROVE)
