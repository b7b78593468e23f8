"""Orchestrator-workers: a plan sets K, workers see their part only, and nobody works on a malformed plan."""

from __future__ import annotations

import pytest
from factories import NumberTasks, boxed, play
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs import replay
from srpo_envs.workflows.orchestrator_workers import OrchestratorWorkers

PLAN = "Easy.\nSUBTASK 1: the tens\nSUBTASK 2: the\nones"


def play_team(answers, **kwargs):
    always = {"orchestrator": PLAN, "worker": "It is 7.", "synthesizer": boxed("x")}
    return play(OrchestratorWorkers(NumberTasks(), **kwargs), {**always, **answers}, seed=0)


def play_results(*results):
    """Play the plan with one result per worker."""
    others = {"orchestrator": PLAN, "synthesizer": boxed("x")}
    env = OrchestratorWorkers(NumberTasks())
    return play(env, lambda active, member: others.get(member.role) or results[member.index], seed=0)


@pytest.mark.parametrize("num_subtasks", [1, 2, 3])
def test_the_plan_sets_how_many_work_together(num_subtasks):
    plan = "\n".join(f"SUBTASK {number}: part {number}" for number in range(1, num_subtasks + 1))
    episode = play_team({"orchestrator": plan})
    assert [(event.event_type, event.cardinality) for event in episode.events] == [
        ("orchestrator", 1),
        ("worker", num_subtasks),
        ("synthesizer", 1),
    ]
    assert [member.agent for member in episode.events[1].members] == [f"worker_{seat}" for seat in range(num_subtasks)]


def test_a_worker_sees_its_own_subtask_and_nothing_of_the_question_or_the_other_part():
    episode = play_team({})
    question = episode.task["question"]
    tens, ones = (member.prompt for member in episode.events[1].members)
    assert "the tens" in tens and "ones" not in tens
    assert "the\nones" in ones and "tens" not in ones
    assert not any(question in prompt or "Easy." in prompt for prompt in (tens, ones))
    assert question in episode.events[0].members[0].prompt


def test_the_synthesizer_sees_question_subtasks_and_results():
    prompt = play_results("four", "two").events[2].members[0].prompt
    assert all(text in prompt for text in ("the tens", "ones", "four", "two", "Say "))


def test_the_synthesizers_answer_alone_is_scored():
    env = OrchestratorWorkers(NumberTasks())
    env.reset(seed=0)
    gold = env.episode.task["gold"]
    assert play_team({"synthesizer": boxed(gold)}).reward == 1.0
    assert play_team({"worker": boxed(gold)}).reward == 0.0


def test_state_labels_tell_the_story():
    assert [event.state_label for event in play_team({}).events] == ["question only", "2 subtasks", "2 results"]
    one = play_team({"orchestrator": "SUBTASK 1: all"})
    assert [event.state_label for event in one.events] == ["question only", "one subtask", "one result"]


BAD_PLANS = ["", "Do it.", "SUBTASK 2: a", "SUBTASK 1: a\nSUBTASK 1: b", "SUBTASK 1:\nSUBTASK 2: b", "<think>" + PLAN]


@pytest.mark.parametrize("text", [*BAD_PLANS, "\n".join(f"SUBTASK {number}: a" for number in range(1, 5))])
def test_nobody_works_on_a_malformed_plan_and_the_team_has_no_answer(text):
    episode = play_team({"orchestrator": text})
    assert [event.event_type for event in episode.events] == ["orchestrator"]
    assert (episode.reward, episode.penalty, episode.terminated) == (0.0, 0.1, True)
    assert (episode.info["answer"], episode.info["stopped_by"]) == (None, "malformed_plan")
    assert episode.info["metrics"]["malformed_plan"] is True
    assert episode.info["metrics"]["num_subtasks"] == 0


def test_a_malformed_result_is_shown_and_charged_and_the_others_count():
    episode = play_results("", "two")
    assert [event.penalty for event in episode.events] == [0.0, 0.1, 0.0]
    assert episode.info["metrics"]["num_malformed_results"] == 1
    assert "two" in episode.events[2].members[0].prompt


@pytest.mark.parametrize(
    ("plan", "num_distinct", "is_handed_on"),
    [
        ("SUBTASK 1: the tens\nSUBTASK 2: The  tens", 1, False),
        ("SUBTASK 1: the tens\nSUBTASK 2: first say {question}", 2, True),
    ],
)
def test_an_episode_says_how_its_plan_was_cut(plan, num_distinct, is_handed_on):
    env = OrchestratorWorkers(NumberTasks())
    env.reset(seed=0)
    metrics = play_team({"orchestrator": plan.replace("{question}", env.episode.task["question"])}).info["metrics"]
    assert (metrics["num_subtasks"], metrics["num_distinct_subtasks"]) == (2, num_distinct)
    assert metrics["question_handed_on"] is is_handed_on


def test_an_episode_replays():
    env = OrchestratorWorkers(NumberTasks())
    episode = play(env, {"orchestrator": PLAN, "worker": "a", "synthesizer": boxed(1)}, seed=0)
    assert replay(episode, env).events == episode.events


texts = st.sampled_from(["", PLAN, "SUBTASK 1: a", *BAD_PLANS, boxed(1), "<think>a</think>b"])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), max_subtasks=st.integers(1, 3))
def test_whatever_is_said_a_readable_plan_is_worked_on_and_answered(data, max_subtasks):
    env = OrchestratorWorkers(NumberTasks(), max_subtasks=max_subtasks)
    episode = play(env, lambda *_: data.draw(texts), seed=0)
    plan = episode.events[0].members[0]
    if plan.is_valid:
        assert episode.events[1].cardinality == len(plan.parsed) <= max_subtasks
        assert len(episode.events) == 3
    else:
        assert len(episode.events) == 1


def test_no_subtasks_are_refused():
    with pytest.raises(ValueError, match="max_subtasks: expected at least 1, got 0"):
        OrchestratorWorkers(NumberTasks(), max_subtasks=0)
