"""Voting: one set of drafts, one selection, and what a selection of nothing leaves."""

from __future__ import annotations

import pytest
from factories import NumberTasks, boxed, play
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.workflows.voting import Voting


def play_team(drafts, selection, **kwargs):
    """Play with these drafts, where ``gold`` stands for the right answer."""
    env = Voting(NumberTasks(), num_generators=len(drafts), **kwargs)
    env.reset(seed=0)
    gold = env.episode.task["gold"]
    texts = [boxed(gold) if draft == "gold" else draft for draft in drafts]
    return play(
        env,
        lambda active, member: texts[member.index] if active.event_type == "generator" else selection,
        seed=0,
    )


@pytest.mark.parametrize("num_generators", [1, 3, 5])
def test_drafts_are_one_event_and_the_selection_another(num_generators):
    episode = play_team(["gold"] * num_generators, boxed(1))
    assert [(event.event_type, event.cardinality) for event in episode.events] == [
        ("generator", num_generators),
        ("aggregator", 1),
    ]
    assert (episode.reward, episode.terminated) == (1.0, True)


def test_generators_see_the_same_question_and_not_one_another():
    episode = play_team([boxed(7), boxed(8), boxed(9)], boxed(1))
    first, second = episode.events
    assert len({member.prompt for member in first.members}) == 1
    assert not any(boxed(number) in first.members[0].prompt for number in (7, 8, 9))
    assert all(boxed(number) in second.members[0].prompt for number in (7, 8, 9))
    assert [event.state_label for event in episode.events] == ["question only", "3 competing drafts"]


@pytest.mark.parametrize(("number", "reward"), [(1, 0.0), (2, 1.0), (3, 0.0)])
def test_the_selected_draft_is_the_answer(number, reward):
    episode = play_team([boxed("a"), "gold", boxed("b")], boxed(number))
    assert (episode.reward, episode.info["selected"]) == (reward, number)
    assert episode.info["answer"] == episode.events[0].members[number - 1].parsed


BAD_SELECTIONS = [
    "",
    "2",
    boxed(0),
    boxed(4),
    boxed(-1),
    boxed("1.0"),
    boxed("two"),
    boxed("1, 2"),
    boxed("２"),
    "\\boxed{2",
]


@pytest.mark.parametrize("text", BAD_SELECTIONS)
def test_a_malformed_selection_answers_nothing_and_falls_back_to_no_draft(text):
    episode = play_team(["gold"] * 3, text)
    assert (episode.reward, episode.terminated, episode.penalty) == (0.0, True, 0.1)
    assert (episode.info["answer"], episode.info["selected"]) == (None, None)
    assert episode.info["metrics"]["malformed_selection"] is True
    assert episode.info["metrics"]["selection_accuracy"] is False


def test_a_selected_draft_that_is_malformed_earns_nothing_and_only_its_author_is_charged():
    episode = play_team(["no box", "gold", "gold"], boxed(1))
    assert (episode.reward, episode.info["answer"], episode.info["selected"]) == (0.0, None, 1)
    assert [event.penalty for event in episode.events] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("drafts", "selection", "expected"),
    [
        (
            ["gold", "gold", boxed("x")],
            boxed(3),
            {"draft_accuracy": 2 / 3, "majority_correct": True, "oracle_correct": True, "selection_accuracy": False},
        ),
        # The majority is wrong, the selection finds the one that is not.
        (
            [boxed("x"), boxed("x"), "gold"],
            boxed(3),
            {"majority_correct": False, "oracle_correct": True, "selection_accuracy": True, "num_distinct_answers": 2},
        ),
        (
            ["?", "?", "gold"],
            boxed(1),
            {"num_malformed_drafts": 2, "num_distinct_answers": 1, "majority_correct": True, "oracle_correct": True},
        ),
    ],
)
def test_an_episode_says_what_there_was_to_select(drafts, selection, expected):
    metrics = play_team(drafts, selection).info["metrics"]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("drafts", [[boxed("x")] * 3, ["?"] * 3])
def test_where_no_draft_is_right_nothing_is_said_of_the_selection(drafts):
    metrics = play_team(drafts, boxed(1)).info["metrics"]
    assert "selection_accuracy" not in metrics
    assert metrics["oracle_correct"] is False


texts = st.sampled_from(["", boxed(1), boxed(2), boxed(9), boxed("gold"), "<think>", boxed(boxed(2))])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_generators=st.integers(1, 4))
def test_whatever_is_said_the_team_earns_what_its_selected_draft_is_worth(data, num_generators):
    episode = play(Voting(NumberTasks(), num_generators=num_generators), lambda *_: data.draw(texts), seed=0)
    drafts, selection = episode.events[0].members, episode.events[1].members[0]
    assert len(episode.events) == 2
    assert episode.info["answer"] == (drafts[selection.parsed - 1].parsed if selection.is_valid else None)
    assert episode.reward == float(episode.info["answer"] == episode.task["gold"])


def test_no_generators_are_refused():
    with pytest.raises(ValueError, match="num_generators: expected at least 1, got 0"):
        Voting(NumberTasks(), num_generators=0)
