"""Evaluator-optimizer: the event sequence, what malformed text does to it, and what it measures."""

from __future__ import annotations

import pytest
from factories import NumberTasks, boxed, play
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs import replay
from srpo_envs.workflows.eval_opt import EvalOpt

RIGHT, WRONG = boxed("Correct"), boxed("Incorrect")
ALWAYS = {"generator": boxed("first"), "refinement": boxed("later")}


def play_team(answers, seed=0, **kwargs):
    return play(EvalOpt(NumberTasks(), **kwargs), {**ALWAYS, **answers}, seed=seed)


def gold_of(seed=0):
    env = EvalOpt(NumberTasks())
    env.reset(seed=seed)
    return env.episode.task["gold"]


def kinds(episode):
    return [event.event_type for event in episode.events]


# --- the schedule -------------------------------------------------------------------------------------------------


def test_an_accepted_draft_is_the_answer():
    episode = play_team({"evaluator": RIGHT})
    assert kinds(episode) == ["generator", "evaluator"]
    assert (episode.info["answer"], episode.info["stopped_by"]) == ("first", "verdict")


def test_a_rejected_draft_is_refined_and_judged_again():
    episode = play_team({"evaluator": [WRONG, RIGHT]})
    assert kinds(episode) == ["generator", "evaluator", "refinement", "evaluator"]
    assert [event.turn for event in episode.events] == [0, 0, 1, 1]
    assert episode.events[2].members[0].agent == "generator_0"  # one role drafts and refines, as in the study
    assert episode.info["answer"] == "later"


@pytest.mark.parametrize("max_rounds", [1, 2, 3])
def test_after_the_last_round_the_newest_draft_counts_whatever_its_verdict(max_rounds):
    episode = play_team({"evaluator": WRONG}, max_rounds=max_rounds)
    assert kinds(episode) == (["generator", "evaluator"] + ["refinement", "evaluator"] * (max_rounds - 1))
    assert (episode.terminated, episode.info["stopped_by"]) == (True, "max_rounds")
    assert episode.info["answer"] == ("first" if max_rounds == 1 else "later")


def test_the_reward_is_the_grade_of_the_newest_draft_alone():
    gold = gold_of()
    mended = play_team({"evaluator": [WRONG, RIGHT], "refinement": boxed(gold)})
    spoilt = play_team({"evaluator": [WRONG, RIGHT], "generator": boxed(gold)})
    assert (mended.reward, spoilt.reward) == (1.0, 0.0)
    assert {event.team_return for event in mended.events} == {1.0}


def test_everything_said_is_seen_by_whoever_follows():
    episode = play_team({"evaluator": ["Too small. " + WRONG, RIGHT]})
    prompts = [event.members[0].prompt for event in episode.events]
    assert "Too small." in prompts[2] and "Too small." in prompts[3]
    assert boxed("first") in prompts[3] and boxed("later") in prompts[3]
    assert boxed("first") not in prompts[0]


def test_state_labels_tell_the_story():
    episode = play_team({"evaluator": [WRONG, "I cannot tell.", RIGHT]})
    assert [event.state_label for event in episode.events] == [
        "question only",
        "draft 1",
        "draft 1, judged Incorrect",
        "draft 2",
        "draft 2, verdict malformed",
        "draft 3",
    ]


# --- malformed text -----------------------------------------------------------------------------------------------

BAD_VERDICTS = [
    "",
    "Correct",
    boxed("correct answer"),
    boxed(42),
    RIGHT + boxed(""),
    "<think>" + RIGHT,
    "\\boxed{Correct",
]


@pytest.mark.parametrize("text", BAD_VERDICTS)
def test_a_malformed_verdict_is_neither_correct_nor_incorrect_and_the_draft_is_refined(text):
    episode = play_team({"evaluator": [text, RIGHT]})
    assert kinds(episode) == ["generator", "evaluator", "refinement", "evaluator"]
    verdict = episode.events[1]
    assert (verdict.members[0].parsed, verdict.penalty) == (None, 0.1)
    assert verdict.members[0].malformed_reason
    assert episode.info["metrics"]["num_malformed_verdicts"] == 1


@pytest.mark.parametrize("text", BAD_VERDICTS)
def test_verdicts_malformed_to_the_end_accept_nothing(text):
    episode = play_team({"evaluator": text, "generator": boxed(gold_of())}, max_rounds=1)
    assert episode.info["metrics"]["accepted"] is False
    assert episode.info["metrics"]["verdict_accuracy"] == 0.0  # right about nothing, though the draft was right
    assert episode.reward == 1.0  # the newest draft is the answer all the same


def test_a_malformed_draft_is_judged_like_any_other_and_earns_nothing_when_accepted():
    episode = play_team({"generator": "no box", "evaluator": RIGHT})
    assert kinds(episode) == ["generator", "evaluator"]
    assert (episode.reward, episode.info["answer"], episode.penalty) == (0.0, None, 0.1)


# --- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # Drafts: wrong, then gold. Verdicts Incorrect, Correct: both say what is the case.
        (
            {"evaluator": [WRONG, RIGHT], "refinement": "gold"},
            {"num_rounds": 2, "accepted": True, "verdict_accuracy": 1.0, "first_correct": False, "mended": True},
        ),
        # Gold is called Incorrect (wrong), its refinement Correct (wrong): a right draft was lost.
        (
            {"evaluator": [WRONG, RIGHT], "generator": "gold"},
            {"verdict_accuracy": 0.0, "first_correct": True, "mended": False, "spoilt": True},
        ),
        # Three wrong drafts; Incorrect, malformed, Incorrect: two of three verdicts are right.
        (
            {"evaluator": [WRONG, "?", WRONG]},
            {"num_rounds": 3, "num_malformed_verdicts": 1, "verdict_accuracy": 2 / 3, "spoilt": False},
        ),
        # Right at once: nothing was mended.
        (
            {"evaluator": RIGHT, "generator": "gold"},
            {"num_rounds": 1, "verdict_accuracy": 1.0, "first_correct": True, "mended": False, "spoilt": False},
        ),
        ({"evaluator": RIGHT, "generator": "?"}, {"num_malformed_drafts": 1, "verdict_accuracy": 0.0}),
    ],
)
def test_an_episode_says_how_drafts_and_verdicts_went_together(answers, expected):
    filled = {kind: boxed(gold_of()) if answer == "gold" else answer for kind, answer in answers.items()}
    metrics = play_team(filled).info["metrics"]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_every_distinct_draft_is_graded_once_and_a_replay_grades_nothing():
    tasks = NumberTasks()
    env = EvalOpt(tasks)
    episode = play(env, {**ALWAYS, "evaluator": WRONG}, seed=0)
    assert [answer for _, answer in tasks.graded] == ["first", "later"]  # the second refinement says the same
    assert [call.arguments for call in episode.events[-1].tool_calls] == ["first", "later"]
    replay(episode, env)
    assert len(tasks.graded) == 2


# --- any team -----------------------------------------------------------------------------------------------------

texts = st.sampled_from(["", boxed(1), RIGHT, WRONG, RIGHT + WRONG, boxed(RIGHT), "<think>", "Correct"])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), max_rounds=st.integers(1, 4))
def test_whatever_is_said_drafts_and_verdicts_alternate_until_an_acceptance(data, max_rounds):
    episode = play(EvalOpt(NumberTasks(), max_rounds=max_rounds), lambda *_: data.draw(texts), seed=0)
    verdicts = [event.members[0].parsed for event in episode.events[1::2]]
    assert {event.event_type for event in episode.events[1::2]} == {"evaluator"}
    assert "Correct" not in verdicts[:-1]
    assert verdicts[-1] == "Correct" or len(verdicts) == max_rounds
    assert {event.cardinality for event in episode.events} == {1}
    malformed = sum(not member.is_valid for event in episode.events for member in event.members)
    assert episode.penalty == pytest.approx(0.1 * malformed)


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="max_rounds: expected at least 1, got 0"):
        EvalOpt(NumberTasks(), max_rounds=0)
