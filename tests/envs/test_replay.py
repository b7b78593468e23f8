"""Replay and branch: a record leads to the same episode without tools or grader, or says where it does not."""

from __future__ import annotations

import dataclasses

import pytest
from factories import APPROVE, REJECT, Lookup, NumberTasks, answer, boxed, play, with_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

import srpo_envs
from srpo_envs.errors import ReplayError
from srpo_envs.records import read_episodes, write_episodes
from srpo_envs.replay import branch, replay
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier


def shout(query):
    return query.upper()


def no_tool(query):
    raise AssertionError("a replay must not call the tool")


def no_grader(task, answer):
    raise AssertionError("a replay must not call the grader")


def offline(workflow, *arguments, **kwargs):
    """An environment whose grader must not be asked."""
    tasks = NumberTasks()
    tasks.grade = no_grader
    return workflow(tasks, *arguments, **kwargs)


def revised_episode(**kwargs):
    texts = {"solver": boxed(1), "verifier": [REJECT, "?", APPROVE], "revision": boxed(2), "aggregator": boxed(3)}
    return play(SolverVerifier(NumberTasks(), max_rounds=3, **kwargs), texts, seed=4)


def changed(episode, number, **fields):
    """The episode with fields of event `number` replaced."""
    events = list(episode.events)
    events[number] = dataclasses.replace(events[number], **fields)
    return dataclasses.replace(episode, events=tuple(events))


def changed_member(episode, number, **fields):
    first, *rest = episode.events[number].members
    return changed(episode, number, members=(dataclasses.replace(first, **fields), *rest))


# --- identity -----------------------------------------------------------------------------------------------------


def test_an_episode_replays_to_itself_without_tools_or_grader():
    episode = play(Lookup(NumberTasks(), shout), {"searcher": "rivers", "answerer": boxed(1)}, seed=0)
    assert replay(episode, offline(Lookup, no_tool)) == episode


def test_replay_after_storage_needs_nothing_else(tmp_path):
    episode = play(Lookup(NumberTasks(), lambda query: [query]), {"searcher": "x", "answerer": boxed(1)}, seed=0)
    write_episodes(tmp_path / "events.jsonl", [episode])
    (stored,) = read_episodes(tmp_path / "events.jsonl")
    assert replay(stored, offline(Lookup, no_tool)) == episode


def test_tokens_and_times_are_carried_over():
    env = SolverVerifier(NumberTasks(), max_rounds=1)
    active = env.reset(seed=0)
    while active is not None:
        outputs = answer(active, {"solver": boxed(1), "verifier": APPROVE, "aggregator": boxed(1)})
        active = env.step(with_tokens(outputs, version=5)).next
    rebuilt = replay(env.episode, offline(SolverVerifier, max_rounds=1))
    for event, original in zip(rebuilt.events, env.episode.events, strict=True):
        assert event == original
        assert [member.timings for member in event.members] == [member.timings for member in original.members]
        assert [call.duration_s for call in event.tool_calls] == [call.duration_s for call in original.tool_calls]


def test_an_unfinished_episode_replays_to_its_pending_event():
    env = SolverVerifier(NumberTasks())
    active = env.reset(seed=0)
    pending = env.step(active.outputs([boxed(1)] * 3)).next
    other = offline(SolverVerifier)
    assert replay(env.episode, other) == env.episode
    assert other.pending == pending


def test_a_registered_environment_is_rebuilt_from_its_id_and_arguments():
    env = srpo_envs.make("ArithmeticSolverVerifierFixed-v0", num_solvers=2, level=1, max_rounds=1)
    episode = play(env, {"solver": boxed(1), "verifier": APPROVE, "aggregator": boxed(1)}, seed=0)
    assert episode.env_kwargs["num_solvers"] == 2
    assert replay(episode) == episode


def test_an_environment_handed_in_may_have_been_built_in_other_words():
    episode = play(srpo_envs.make("ArithmeticSingleAgent-v0"), {"solver": boxed(1)}, seed=0)
    same = srpo_envs.make("ArithmeticSingleAgent-v0", level=2)  # the default, spelled out
    assert dict(replay(episode, same).env_kwargs) == {"level": 2}
    other = srpo_envs.make("ArithmeticSingleAgent-v0", max_new_tokens=7)  # a limit is no part of what happened
    assert replay(episode, other).events == episode.events


def test_an_unregistered_environment_must_be_handed_in():
    episode = play(SingleAgent(NumberTasks()), {"solver": boxed(1)}, seed=0)
    with pytest.raises(ReplayError, match="recorded by 'SingleAgent', which is not registered"):
        replay(episode)


texts = st.sampled_from(
    [boxed(1), boxed(2), "none", APPROVE, REJECT, "<route>2</route>", "<route>1, 3</route>", "\x00"]
)


@settings(max_examples=40)
@given(data=st.data(), variant=st.sampled_from(["fixed", "mixed", "routed"]), seed=st.integers(0, 2**32))
def test_whatever_a_team_says_replays(data, variant, seed):
    env = SolverVerifier(NumberTasks(), variant=variant, max_rounds=3, max_events=8)
    episode = play(env, lambda active, member: data.draw(texts), seed=seed)
    assert episode.is_over
    assert replay(episode, offline(SolverVerifier, variant=variant, max_rounds=3, max_events=8)) == episode


# --- differences --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: changed(e, 1, reward=1.0), r"e1': the replay differs from the record in reward: 1.0 became 0.0"),
        (lambda e: changed(e, 3, penalty=0.0), r"e3': .* in penalty: 0.0 became 0.1"),
        (lambda e: changed(e, 2, state_id="0"), r"e2': .* in state_id: '0' became"),
        (lambda e: changed(e, 0, event_type="draft"), r"e0': .* in event_type: 'draft' became 'solver'"),
        (lambda e: changed(e, 1, turn=4), r"e1': .* in turn: 4 became 0"),
        (lambda e: changed(e, 0, cardinality=2), r"e0': .* in cardinality: 2 became 3"),
        (lambda e: changed(e, 0, team_return=0.5), r"differs from the record in events\[0\].team_return: 0.5 became"),
        (lambda e: changed_member(e, 0, parsed="9"), r"e0': .* in members\[0\].parsed: '9' became '1'"),
        (lambda e: changed_member(e, 0, text=boxed(9)), r"e0': .* in members\[0\].parsed: '1' became '9'"),
        (lambda e: changed_member(e, 1, text=APPROVE, parsed="approve"), r"e2': the replay asks \['aggregator_0'\]"),
        (lambda e: changed_member(e, 1, prompt="other"), r"e1': .* or other prompts"),
        (lambda e: dataclasses.replace(e, seed=1), r"e0': .* in state_id"),
        (lambda e: dataclasses.replace(e, reward=1.0), r"in reward: 1.0 became 0.0"),
        (lambda e: dataclasses.replace(e, terminated=False), r"in terminated: False became True"),
        (lambda e: dataclasses.replace(e, events=e.events[:-1]), r"in (events|reward|terminated)"),
        (lambda e: dataclasses.replace(e, events=(*e.events, e.events[-1])), "after the replayed episode had ended"),
    ],
)
def test_the_first_difference_is_named(change, message):
    with pytest.raises(ReplayError, match=message):
        replay(change(revised_episode()), offline(SolverVerifier, max_rounds=3))


def test_a_changed_workflow_is_noticed():
    with pytest.raises(ReplayError, match=r"e4': the replay asks \['aggregator_0'\]"):
        replay(revised_episode(), offline(SolverVerifier, max_rounds=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda calls: calls[:1], r"e0': the schedule called search\(.*\), the record holds no further call"),
        (lambda calls: (*calls, calls[0]), "e0': recorded call 'search' was not made again"),
        (
            lambda calls: (dataclasses.replace(calls[0], arguments={"query": "y"}), calls[1]),
            r"e0': the schedule called search\({'query': 'x'}\), the record holds search\({'query': 'y'}\)",
        ),
    ],
)
def test_calls_that_do_not_match_the_record_never_reach_the_tool(change, message):
    episode = play(Lookup(NumberTasks(), shout), {"searcher": "x", "answerer": boxed(1)}, seed=0)
    broken = changed(episode, 0, tool_calls=change(episode.events[0].tool_calls))
    with pytest.raises(ReplayError, match=message):
        replay(broken, offline(Lookup, no_tool))


# --- branches -----------------------------------------------------------------------------------------------------


def test_a_branch_shares_its_history_and_goes_another_way():
    episode = revised_episode()
    env = branch(episode, 1, SolverVerifier(NumberTasks(), max_rounds=3))
    assert env.pending.event_id == f"{episode.episode_id}~1/e1"
    assert env.pending.state_id == episode.events[1].state_id  # the shared anchor
    assert [member.prompt for member in env.pending.members] == [m.prompt for m in episode.events[1].members]
    result = env.step(env.pending.outputs([APPROVE]))
    assert result.next.event_type == "aggregator"
    assert result.next.state_id != episode.events[2].state_id
    assert env.episode.events[0].members == episode.events[0].members


def test_a_finished_branch_replays_by_itself():
    env = branch(revised_episode(), 2, SolverVerifier(NumberTasks(), max_rounds=3), episode_id="other")
    active = env.pending
    while active is not None:
        active = env.step(answer(active, {"revision": boxed(7), "verifier": APPROVE, "aggregator": boxed(7)})).next
    assert env.episode.episode_id == "other"
    assert replay(env.episode, offline(SolverVerifier, max_rounds=3)) == env.episode


def test_a_branch_calls_real_tools_only_beyond_its_history():
    asked = []
    episode = play(Lookup(NumberTasks(), shout), {"searcher": "x", "answerer": boxed(1)}, seed=0)
    env = branch(episode, 0, Lookup(NumberTasks(), lambda query: asked.append(query) or "new"))
    result = env.step(env.pending.outputs(["one", "two"]))
    assert asked == ["one", "two"]
    assert result.next.members[0].prompt.endswith("new\nnew")


def test_a_branch_of_a_registered_environment_needs_no_environment():
    episode = play(srpo_envs.make("ArithmeticSingleAgent-v0"), {"solver": boxed(1)}, seed=0)
    assert branch(episode, 0).pending.state_id == episode.events[0].state_id


def test_a_branch_after_the_end_raises():
    with pytest.raises(ReplayError, match=r"is over after 6 events; branch at 0\.\.5"):
        branch(revised_episode(), 6, SolverVerifier(NumberTasks(), max_rounds=3))


def test_a_branch_beyond_the_record_raises():
    with pytest.raises(ReplayError, match=r"num_events 7 is outside 0\.\.6"):
        branch(revised_episode(), 7, SolverVerifier(NumberTasks(), max_rounds=3))
