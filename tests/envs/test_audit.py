"""Audit: each rule of the event contract is broken once and named, and sound runs pass."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from factories import APPROVE, REJECT, Lookup, NumberTasks, answer, boxed, make_event, make_member, play
from factories import with_tokens as fill_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

import srpo_envs
from srpo_envs.audit import RULES, audit_episodes, audit_events, audit_run, event_table, format_event_table
from srpo_envs.errors import AuditError, ReplayError
from srpo_envs.records import episode_to_lines, write_episodes
from srpo_envs.workflows.solver_verifier import SolverVerifier


def sound_episode(seed: int = 0, env=None):
    """An episode with K = 3, 1, 1, 1, 1, tokens, and one malformed draft."""
    env = env or SolverVerifier(NumberTasks())
    active = env.reset(seed=seed)
    texts = {"solver": boxed(1), "verifier": REJECT, "revision": "no box", "aggregator": boxed(1)}
    while active is not None:
        active = env.step(fill_tokens(answer(active, texts), version=2, seed=seed)).next
    return env.episode


def with_event(episode, number, **fields):
    events = list(episode.events)
    events[number] = dataclasses.replace(events[number], **fields)
    return dataclasses.replace(episode, events=tuple(events))


def with_member(episode, number, index, **fields):
    members = list(episode.events[number].members)
    members[index] = dataclasses.replace(members[index], **fields)
    return with_event(episode, number, members=tuple(members))


def broken_rules(*episodes, **kwargs):
    return {finding.rule for finding in audit_episodes(episodes, **kwargs).findings}


def test_a_sound_run_passes_and_is_counted():
    report = audit_episodes([sound_episode(seed) for seed in range(3)])
    assert report.is_ok
    report.raise_if_failed()
    assert (report.num_episodes, report.num_events, report.num_members) == (3, 15, 21)
    assert report.cardinalities == {3: 3, 1: 12}
    assert report.summary() == (
        "3 episodes, 15 events, 21 outputs; events by K=1: 12, K=3: 3\nnot replayed\nevery rule holds"
    )


def test_episodes_with_tools_a_truncated_and_an_unfinished_one_pass():
    tool = play(Lookup(NumberTasks(), lambda query: [query]), {"searcher": "x", "answerer": boxed(1)}, seed=1)
    cut = play(SolverVerifier(NumberTasks(), max_events=2), {"solver": boxed(1), "verifier": APPROVE}, seed=2)
    env = SolverVerifier(NumberTasks())
    active = env.reset(seed=3)
    env.step(active.outputs(["a", "b", "c"]))
    assert cut.truncated
    assert not env.episode.is_over
    assert audit_episodes([tool, cut, env.episode]).findings == ()


BREAKS = {
    "members lost": (lambda e: with_event(e, 0, members=e.events[0].members[:2]), {"complete", "cardinality", "state"}),
    "members out of order": (lambda e: with_event(e, 0, members=e.events[0].members[::-1]), {"complete"}),
    "member aborted": (lambda e: with_member(e, 0, 1, finish_reason="abort"), {"complete"}),
    "member doubled": (lambda e: with_member(e, 0, 1, agent="solver_0"), {"agents"}),
    "versions mixed": (lambda e: with_member(e, 0, 1, policy_version=3), {"version"}),
    "log-prob lost": (lambda e: with_member(e, 0, 1, behavior_logprobs=()), {"tokens"}),
    "kept tokens of another count": (lambda e: with_member(e, 0, 1, kept_token_ids=((1,),) * 9), {"tokens"}),
    "a token that was not left": (
        lambda e: with_member(
            e, 1, 0, token_ids=(1,), token_mask=(1,), behavior_logprobs=(-0.5,), kept_token_ids=((2, 3),)
        ),
        {"tokens"},
    ),
    "mask of another length": (lambda e: with_member(e, 0, 1, token_mask=(1,) * 99), {"tokens"}),
    "log-prob not finite": (
        lambda e: with_member(e, 1, 0, token_ids=(1,), token_mask=(1,), behavior_logprobs=(-math.inf,)),
        {"logprobs"},
    ),
    "log-prob positive": (
        lambda e: with_member(e, 1, 0, token_ids=(1,), token_mask=(1,), behavior_logprobs=(0.5,)),
        {"logprobs"},
    ),
    "mask of twos": (
        lambda e: with_member(e, 1, 0, token_ids=(1,), token_mask=(2,), behavior_logprobs=(-0.5,)),
        {"tokens"},
    ),
    "event id of another": (lambda e: with_event(e, 1, event_id=e.events[0].event_id), {"unique", "order"}),
    "events swapped": (
        lambda e: dataclasses.replace(e, events=(e.events[1], e.events[0], *e.events[2:])),
        {"order", "state"},
    ),
    "event of another task": (lambda e: with_event(e, 1, task_id="numbers/0"), {"order"}),
    "event of another group": (lambda e: with_event(e, 1, group_id="g"), {"order"}),
    "state id changed": (lambda e: with_event(e, 2, state_id="0" * 32), {"state"}),
    "text changed": (lambda e: with_member(e, 0, 2, text="changed"), {"state"}),
    "seed changed": (lambda e: dataclasses.replace(e, seed=e.seed + 1), {"state"}),
    "gold changed": (lambda e: dataclasses.replace(e, task={**e.task, "gold": "?"}), {"state"}),
    "grade changed": (
        lambda e: with_event(e, 4, tool_calls=()),
        set(),  # the last event's calls have no later state; replay finds this one
    ),
    "penalty without cause": (lambda e: with_event(e, 1, penalty=0.1, reward=-0.1), {"penalty", "return"}),
    "penalty negative": (lambda e: with_event(e, 2, penalty=-0.1, reward=0.1), {"penalty", "return"}),
    "penalty total": (lambda e: dataclasses.replace(e, penalty=0.0), {"penalty"}),
    "reward raised": (lambda e: with_event(e, 1, reward=1.0), {"reward", "return"}),
    "return raised": (lambda e: with_event(e, 1, team_return=1.0), {"return"}),
    "return missing": (lambda e: with_event(e, 1, team_return=None), {"return"}),
    "no end": (lambda e: with_event(e, 4, terminated=False), {"end"}),
    "two ends": (lambda e: with_event(e, 1, terminated=True), {"end"}),
    "both ends": (
        lambda e: with_event(dataclasses.replace(e, truncated=True), 4, truncated=True),
        {"end"},
    ),
    "more tokens than the budget": (
        lambda e: dataclasses.replace(e, env_kwargs={"budget": {"team_tokens": e.num_tokens - 1}}),
        {"budget"},
    ),
    "more calls than the budget": (
        lambda e: dataclasses.replace(e, env_kwargs={"budget": {"calls": 6}}),
        {"budget"},
    ),
    "no budget at all": (lambda e: dataclasses.replace(e, env_kwargs={"budget": {"cals": 6}}), {"budget"}),
    "cut called natural": (lambda e: with_event(e, 4, terminated=False, truncated=True), {"end"}),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_found(name):
    change, expected = BREAKS[name]
    episode = change(sound_episode())
    report = audit_episodes([episode])
    assert {finding.rule for finding in report.findings} == expected
    for finding in report.findings:
        assert finding.record_id.startswith(episode.episode_id)


def test_every_rule_but_replay_is_broken_by_some_test():
    covered = {rule for _, rules in BREAKS.values() for rule in rules}
    assert covered == set(RULES) - {"replay"}


def test_different_policies_of_one_event_may_have_different_versions():
    members = (make_member(0, policy_id="a", policy_version=1), make_member(1, policy_id="b", policy_version=7))
    assert audit_events([make_event(2, members=members)]).is_ok


def test_bad_log_probabilities_of_one_member_are_one_finding():
    members = (make_member(0, length=3, behavior_logprobs=(-0.5, math.nan, math.nan)), make_member(1))
    findings = audit_events([make_event(2, members=members)]).findings
    assert [(finding.rule, finding.detail) for finding in findings] == [("logprobs", "member_index 0, token 1: nan")]


def test_a_penalty_on_valid_members_is_found_on_the_event_itself():
    report = audit_events([make_event(1, penalty=0.1, reward=-0.1)])
    assert [(finding.rule, finding.record_id) for finding in report.findings] == [("penalty", "ep/e0")]
    malformed = make_member(malformed_reason="no boxed answer", parsed=None)
    assert audit_events([make_event(1, members=(malformed,), penalty=0.1, reward=-0.1)]).is_ok


def test_the_same_episode_twice_is_found():
    report = audit_episodes([sound_episode(), sound_episode()])
    assert {finding.rule for finding in report.findings} == {"unique"}
    assert len(report.findings) == 6  # the episode and its five events


def test_events_alone_are_checked_as_far_as_they_go():
    events = [make_event(3, [4, 2, 7]), make_event(2, number=1, members=(make_member(0),))]
    report = audit_events(events)
    assert [finding.record_id for finding in report.findings] == ["ep/e1", "ep/e1"]
    assert (report.num_episodes, report.num_events, report.num_members) == (0, 2, 4)


def test_a_failed_audit_names_event_finding_and_remedy():
    episode = BREAKS["versions mixed"][0](sound_episode())
    with pytest.raises(AuditError) as raised:
        audit_episodes([episode]).raise_if_failed()
    message = str(raised.value)
    assert f"{episode.episode_id}/e0: version: policy 'policy' answered with versions [2, 3]" in message
    assert "publish weights between events" in message


def test_a_long_list_of_findings_is_cut_in_the_summary():
    report = audit_episodes([sound_episode()] * 5)
    assert len(report.findings) == 24
    assert report.summary(max_findings=2).endswith("... and 22 more")


texts = st.sampled_from(["", boxed(1), APPROVE, REJECT, "<route>1</route>", "<route>2, 3</route>", "\x00\u2028"])


@settings(max_examples=40)
@given(data=st.data(), variant=st.sampled_from(["fixed", "mixed", "routed"]), max_events=st.integers(1, 12))
def test_whatever_a_team_says_the_record_is_sound(data, variant, max_events):
    env = SolverVerifier(NumberTasks(), variant=variant, max_rounds=3, max_events=max_events)
    episode = play(env, lambda active, member: data.draw(texts), seed=0)
    assert audit_episodes([episode]).findings == ()
    assert len(event_table(episode)) == len(episode.events)


# --- runs and replay ----------------------------------------------------------------------------------------------


@pytest.fixture
def registered_episodes():
    env = srpo_envs.make("ArithmeticSolverVerifier-v0", num_solvers=2)
    return [sound_episode(seed, env) for seed in range(3)]


def test_a_run_folder_is_audited_with_replay(tmp_path, registered_episodes):
    write_episodes(tmp_path / "events" / "step-1.jsonl", registered_episodes[:2])
    write_episodes(tmp_path / "events" / "step-2.jsonl", registered_episodes[2:])
    report = audit_run(tmp_path, replay=True)
    assert report.is_ok
    assert (report.num_episodes, report.num_replayed) == (3, 3)


def test_an_episode_stored_in_two_files_is_found(tmp_path, registered_episodes):
    write_episodes(tmp_path / "events" / "step-1.jsonl", registered_episodes)
    write_episodes(tmp_path / "events" / "step-2.jsonl", registered_episodes[:1])
    assert {finding.rule for finding in audit_run(tmp_path).findings} == {"unique"}


@pytest.mark.parametrize("num_bytes", [1, 100, 5000, 7000])
def test_a_file_whose_end_is_torn_off_is_audited_up_to_there_and_named(tmp_path, registered_episodes, num_bytes):
    """As a power cut or a full disk leaves a log that is appended to."""
    write_episodes(tmp_path / "events" / "step-1.jsonl", registered_episodes)
    whole = (tmp_path / "events" / "step-1.jsonl").read_bytes()
    (tmp_path / "events" / "step-1.jsonl").write_bytes(whole[:-num_bytes])
    last = sum(len(line) + 1 for line in episode_to_lines(registered_episodes[2]))
    num_lost = 0 if num_bytes == 1 else 1 if num_bytes <= last else 2
    report = audit_run(tmp_path)
    assert report.is_ok
    assert report.num_episodes == 3 - num_lost
    assert len(report.torn) == bool(num_lost)
    assert ("a last record counts as never written: " in report.summary()) == bool(num_lost)


def test_a_file_that_ends_between_the_lines_of_an_episode_is_audited_up_to_there(tmp_path, registered_episodes):
    path = tmp_path / "events" / "step-1.jsonl"
    write_episodes(path, registered_episodes)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    report = audit_run(tmp_path)
    assert report.num_episodes == 2
    assert "the file was cut short" in report.torn[0]


def test_replay_finds_what_the_records_alone_do_not_show(registered_episodes):
    call = registered_episodes[0].events[-1].tool_calls[0]
    forged = with_event(registered_episodes[0], 4, tool_calls=(dataclasses.replace(call, result=1.0),))
    assert broken_rules(forged) == set()
    assert broken_rules(forged, replay=True) == {"replay"}


def test_a_world_that_is_not_registered_stops_the_replay_at_once():
    # Hundreds of findings would say of the episodes what is true of the place the audit runs in.
    with pytest.raises(ReplayError, match="which is not registered"):
        audit_episodes([sound_episode(), sound_episode(1)], replay=True)


def test_a_folder_without_events_raises(tmp_path):
    with pytest.raises(AuditError, match=r"holds no events/\*\.jsonl"):
        audit_run(tmp_path)


# --- the table ----------------------------------------------------------------------------------------------------


def test_the_event_table_has_a_row_per_transition_whatever_its_cardinality():
    rows = [tuple(row.values()) for row in event_table(sound_episode())]
    assert rows == [
        ("e0 solver", "question only", "3 solver", "3 competing drafts", 3),
        ("e1 verifier", "3 competing drafts", "1 verifier", "rejected drafts", 1),
        ("e2 revision", "rejected drafts", "1 solver (1 malformed)", "4 competing drafts", 1),
        ("e3 verifier", "4 competing drafts", "1 verifier", "unapproved drafts", 1),
        ("e4 aggregator", "unapproved drafts", "1 aggregator", "terminal, team reward 0", 1),
    ]


def test_the_table_in_the_docs_is_what_the_audit_prints():
    page = Path(__file__).parents[2] / "docs" / "environments" / "math-solver-verifier.md"
    answers = {"solver": "24", "revision": "24", "aggregator": "24"}
    texts = {event_type: boxed(text) for event_type, text in answers.items()} | {"verifier": [REJECT, APPROVE]}
    env = srpo_envs.make("MathSolverVerifier-v0")
    env.reset(options={"task_index": 1})
    assert env.episode.task["gold"] == "24"
    assert format_event_table(play(env, texts, task_index=1)) in page.read_text(encoding="utf-8")


def test_the_table_is_markdown_with_the_papers_columns():
    env = Lookup(NumberTasks(), lambda query: query, max_events=1)
    lines = format_event_table(play(env, {"searcher": "x"}, seed=0)).splitlines()
    assert lines == [
        "| event       | pre-action state | outputs consumed | state transition         | K_e |",
        "|-------------|------------------|------------------|--------------------------|-----|",
        "| e0 searcher | no evidence      | 2 searcher       | truncated, team reward 0 | 2   |",
    ]


def test_tool_calls_show_in_the_transition_and_an_open_episode_is_pending():
    env = Lookup(NumberTasks(), lambda query: query)
    active = env.reset(seed=0)
    env.step(active.outputs(["a", "b"]))
    assert [row["state transition"] for row in event_table(env.episode)] == ["pending"]
    env.step(env.pending.outputs([boxed(1)]))
    assert event_table(env.episode)[0]["state transition"] == "evidence (2 tool calls)"
