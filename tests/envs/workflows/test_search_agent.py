"""Single-agent search: think, then search or answer, with a last step to answer in."""

from __future__ import annotations

import pytest
from search_world import ANSWERS, AtlasTasks, play_script, say, search

from srpo_envs.search import ScriptedRetriever
from srpo_envs.workflows.search_agent import SearchAgent

DIRECTOR, COUNTRY, CAPITAL = "director of Silver Tide", "country of Varna", "capital of Bulgaria"


def make(**kwargs):
    return SearchAgent(AtlasTasks(), **{"retriever": ScriptedRetriever(ANSWERS), **kwargs})


def test_it_searches_until_it_answers():
    episode = play_script(
        make(),
        ("agent", search(DIRECTOR)),
        ("continuation", search(COUNTRY)),
        ("continuation", say("Sofia")),
    )
    assert (episode.reward, episode.terminated, episode.info["stopped_by"]) == (1.0, True, "answer")
    assert episode.info["answer"] == "Sofia"
    assert [event.turn for event in episode.events] == [0, 1, 2]
    assert {event.cardinality for event in episode.events} == {1}
    assert {member.agent for event in episode.events for member in event.members} == {"agent_0"}
    assert [event.state_label for event in episode.events] == ["question, no evidence", "1 passage", "2 passages"]
    metrics = episode.info["metrics"]
    assert (metrics["num_turns"], metrics["num_queries"]) == (2.0, 2.0)
    assert metrics["gold_passage_recall"] == pytest.approx(2 / 3)


def test_it_may_answer_at_once():
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(make(retriever=retriever), ("agent", say("Sofia")))
    assert (episode.reward, episode.info["metrics"]["num_turns"]) == (1.0, 0.0)
    assert retriever.queries == []


def test_after_the_last_search_there_is_one_more_step_to_answer_in():
    episode = play_script(make(max_turns=1), ("agent", search(DIRECTOR)), ("continuation", say("Sofia")))
    assert episode.reward == 1.0
    assert [event.members[0].prompt.splitlines()[-1] for event in episode.events] == ["1/2 agent", "2/2 agent"]


@pytest.mark.parametrize("last", [search(COUNTRY), "Sofia", say("")])
def test_a_last_step_without_an_answer_truncates_the_episode(last):
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(
        make(max_turns=1, retriever=retriever, query_cost=0.25), ("agent", search(DIRECTOR)), ("continuation", last)
    )
    assert (episode.truncated, episode.terminated, episode.info["stopped_by"]) == (True, False, "max_turns")
    assert (episode.info["correct"], episode.info["answer"]) == (False, None)
    assert retriever.queries == [DIRECTOR]  # the last step's query is never sent
    metrics = episode.info["metrics"]
    assert (metrics["num_turns"], metrics["num_queries"]) == (1.0, 1.0)
    assert episode.reward == -0.25
    assert episode.penalty == (0.0 if "search" in last else 0.1)


@pytest.mark.parametrize("text", ["", "Sofia", "<answer>Sofia</answer>", search("x") + say("y"), "<think>hm</think>"])
def test_a_malformed_step_is_spent_and_charged(text):
    episode = play_script(make(max_turns=2), ("agent", text), ("continuation", say("Sofia")))
    assert (episode.events[0].penalty, episode.reward) == (0.1, 1.0)
    reason = episode.events[0].members[0].malformed_reason
    assert f"agent_0 malformed: {reason}" in episode.events[1].members[0].prompt
    metrics = episode.info["metrics"]
    assert (metrics["num_turns"], metrics["num_queries"]) == (1.0, 0.0)


def test_malformed_steps_use_up_the_searches():
    env = make(max_turns=2)
    episode = play_script(env, ("agent", "?"), ("continuation", "?"), ("continuation", say("Sofia")))
    assert episode.terminated
    assert episode.penalty == pytest.approx(0.2)


def test_every_step_sees_all_that_was_found():
    episode = play_script(
        make(), ("agent", search(DIRECTOR)), ("continuation", search(CAPITAL)), ("continuation", say("Sofia"))
    )
    question = AtlasTasks().task(0).question
    assert episode.events[0].members[0].prompt == f"{question}\n1/4 agent"
    last = episode.events[2].members[0].prompt
    assert [last.count(f"[{id}]") for id in ("film", "bulgaria", "varna")] == [1, 1, 1]
    assert last.endswith("\n3/4 agent")


def test_the_query_of_an_earlier_step_is_a_duplicate_across_turns():
    episode = play_script(
        make(),
        ("agent", search(DIRECTOR)),
        ("continuation", search("Director of silver tide.")),
        ("continuation", say(1)),
    )
    metrics = episode.info["metrics"]
    assert (metrics["duplicate_queries_across_turns"], metrics["duplicate_queries_in_set"]) == (0.5, 0.0)


def test_the_answer_alone_is_graded():
    tasks = AtlasTasks()
    env = SearchAgent(tasks, retriever=ScriptedRetriever(ANSWERS))
    play_script(env, ("agent", search("Sofia")), ("continuation", say("Varna")))
    assert tasks.graded == ["Varna"]
