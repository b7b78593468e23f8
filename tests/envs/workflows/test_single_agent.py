"""Single agent: one event with one member."""

from __future__ import annotations

import pytest
from factories import NumberTasks, boxed, play

from srpo_envs.workflows.single_agent import SingleAgent


def test_one_event_with_one_member():
    episode = play(SingleAgent(NumberTasks()), {"solver": boxed(1)}, seed=0)
    assert [(event.event_type, event.cardinality) for event in episode.events] == [("solver", 1)]
    assert episode.terminated
    assert SingleAgent(NumberTasks()).possible_agents == ["solver_0"]


def test_the_answer_is_graded():
    env = SingleAgent(NumberTasks())
    right = play(env, {"solver": boxed(17)}, task_index=17)
    wrong = play(env, {"solver": boxed(18)}, task_index=17)
    assert (right.reward, right.info) == (1.0, {"answer": "17", "correct": True})
    assert (wrong.reward, wrong.info) == (0.0, {"answer": "18", "correct": False})


def test_a_malformed_answer_earns_the_penalty_and_is_not_graded():
    tasks = NumberTasks()
    episode = play(SingleAgent(tasks), {"solver": "17"}, task_index=17)
    assert episode.events[0].reward == pytest.approx(-0.1)
    assert episode.info == {"answer": None, "correct": False}
    assert tasks.graded == []
