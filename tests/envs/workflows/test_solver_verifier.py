"""Math solver-verifier: the event sequence of every variant, and what malformed text does to it."""

from __future__ import annotations

import pytest
from factories import APPROVE, REJECT, NumberTasks, boxed, play
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.workflows.solver_verifier import SolverVerifier

ALWAYS = {"solver": boxed(1), "revision": boxed(2), "aggregator": boxed(3)}


def play_team(answers, seed=0, **kwargs):
    return play(SolverVerifier(NumberTasks(), **kwargs), {**ALWAYS, **answers}, seed=seed)


def sequence(episode):
    return [(event.event_type, event.cardinality) for event in episode.events]


# --- variants -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["fixed", "mixed"])
def test_approved_drafts_go_straight_to_the_aggregator(variant):
    episode = play_team({"verifier": APPROVE}, variant=variant)
    assert sequence(episode) == [("solver", 3), ("verifier", 1), ("aggregator", 1)]
    assert episode.info["stopped_by"] == "approval"


def test_mixed_revises_with_one_solver():
    episode = play_team({"verifier": [REJECT, APPROVE]}, variant="mixed", num_solvers=4)
    assert sequence(episode) == [("solver", 4), ("verifier", 1), ("revision", 1), ("verifier", 1), ("aggregator", 1)]
    assert episode.events[2].members[0].agent == "solver_0"


def test_fixed_revises_with_all_solvers():
    episode = play_team({"verifier": [REJECT, APPROVE]}, variant="fixed", num_solvers=2)
    assert sequence(episode) == [("solver", 2), ("verifier", 1), ("revision", 2), ("verifier", 1), ("aggregator", 1)]


def test_routed_lets_the_router_choose_every_draft_event():
    routes = ["<route>1, 3</route>", "<route>2</route>"]
    episode = play_team({"router": routes, "verifier": [REJECT, APPROVE]}, variant="routed")
    assert sequence(episode) == [
        ("router", 1),
        ("solver", 2),
        ("verifier", 1),
        ("router", 1),
        ("revision", 1),
        ("verifier", 1),
        ("aggregator", 1),
    ]
    assert [member.agent for member in episode.events[1].members] == ["solver_0", "solver_2"]
    assert [member.agent for member in episode.events[4].members] == ["solver_1"]
    assert [event.turn for event in episode.events] == [0, 0, 0, 1, 1, 1, 1]


def test_the_aggregator_answers_after_the_last_round_approved_or_not():
    episode = play_team({"verifier": REJECT}, max_rounds=2)
    assert sequence(episode)[-2:] == [("verifier", 1), ("aggregator", 1)]
    assert episode.terminated
    assert episode.info["stopped_by"] == "max_rounds"


def test_the_aggregators_answer_alone_is_scored():
    env = SolverVerifier(NumberTasks())
    env.reset(seed=0)
    gold = env.episode.task["gold"]
    right = play(env, {"solver": boxed("x"), "verifier": APPROVE, "aggregator": boxed(gold)}, seed=0)
    wrong = play(env, {"solver": boxed(gold), "verifier": APPROVE, "aggregator": boxed("x")}, seed=0)
    assert (right.reward, right.info["answer"], right.info["correct"]) == (1.0, gold, True)
    assert (wrong.reward, wrong.info["answer"], wrong.info["correct"]) == (0.0, "x", False)


def test_a_malformed_final_answer_earns_nothing_and_is_charged():
    episode = play_team({"verifier": APPROVE, "aggregator": "no box"})
    assert (episode.reward, episode.penalty, episode.terminated) == (0.0, pytest.approx(0.1), True)
    assert episode.events[-1].tool_calls == ()  # nothing was graded


# --- malformed text never counts as a decision --------------------------------------------------------------------

BAD_VERDICTS = ["", "looks right, approve", "<verify>maybe</verify>", APPROVE + REJECT, "<verify>approve", "approve"]


@pytest.mark.parametrize("text", BAD_VERDICTS)
def test_a_malformed_verdict_spends_the_round_and_the_same_drafts_are_judged_again(text):
    episode = play_team({"verifier": [text, APPROVE]})
    assert sequence(episode) == [("solver", 3), ("verifier", 1), ("verifier", 1), ("aggregator", 1)]
    first, again = episode.events[1], episode.events[2]
    assert (first.members[0].parsed, first.penalty) == (None, 0.1)
    assert again.members[0].prompt == first.members[0].prompt
    assert again.state_id != first.state_id
    assert again.turn == first.turn + 1


@pytest.mark.parametrize("text", BAD_VERDICTS)
def test_verdicts_malformed_to_the_end_are_no_approval(text):
    episode = play_team({"verifier": text}, max_rounds=2)
    assert sequence(episode) == [("solver", 3), ("verifier", 1), ("verifier", 1), ("aggregator", 1)]
    assert episode.info["stopped_by"] == "max_rounds"
    assert episode.events[-1].state_label == "unapproved drafts"


BAD_ROUTES = ["", "all", "<route>all</route>", "<route>0</route>", "<route>4</route>", "<route></route>", "1, 2"]


@pytest.mark.parametrize("text", [*BAD_ROUTES, "<route>STOP</route>", "<route>1</route><route>2</route>"])
def test_a_malformed_route_activates_nobody_and_spends_the_turn(text):
    episode = play_team({"router": [text, "<route>2</route>"], "verifier": APPROVE}, variant="routed")
    assert sequence(episode) == [("router", 1), ("router", 1), ("solver", 1), ("verifier", 1), ("aggregator", 1)]
    assert episode.events[0].penalty == 0.1
    assert [event.turn for event in episode.events] == [0, 1, 1, 1, 1]


def test_a_router_that_never_chooses_anybody_truncates_the_episode():
    episode = play_team({"router": "everyone!"}, variant="routed", max_rounds=3)
    assert sequence(episode) == [("router", 1)] * 3
    assert (episode.truncated, episode.terminated, episode.reward) == (True, False, 0.0)
    assert episode.info["correct"] is False
    assert episode.penalty == pytest.approx(0.3)


def test_a_malformed_route_after_a_rejection_leaves_the_drafts_to_the_aggregator():
    routes = ["<route>1</route>", "?"]
    episode = play_team({"router": routes, "verifier": REJECT}, variant="routed", max_rounds=2)
    assert sequence(episode) == [("router", 1), ("solver", 1), ("verifier", 1), ("router", 1), ("aggregator", 1)]
    assert episode.terminated


def test_malformed_drafts_are_judged_like_any_other():
    episode = play_team({"solver": "no box", "verifier": APPROVE})
    assert sequence(episode) == [("solver", 3), ("verifier", 1), ("aggregator", 1)]
    assert episode.events[0].penalty == pytest.approx(0.3)  # three malformed drafts at 0.1


# --- observations -------------------------------------------------------------------------------------------------


def test_nobody_sees_what_is_sampled_in_the_same_event():
    texts = {"solver_0": boxed(10), "solver_1": boxed(11), "solver_2": boxed(12)}
    episode = play(
        SolverVerifier(NumberTasks()),
        lambda active, member: texts[member.agent] if active.event_type == "solver" else APPROVE + boxed(1),
        seed=0,
    )
    for member in episode.events[0].members:
        assert not any(text in member.prompt for text in texts.values())
    assert all(f"{agent}: {text}" in episode.events[1].members[0].prompt for agent, text in texts.items())


def test_a_revision_sees_all_drafts_and_the_verdict_and_adds_to_them():
    episode = play_team({"verifier": ["Wrong. " + REJECT, APPROVE]}, num_solvers=2)
    revision, second_verdict, final = episode.events[2], episode.events[3], episode.events[4]
    assert revision.members[0].prompt.count(boxed(1)) == 2
    assert "Wrong. " + REJECT in revision.members[0].prompt
    for later in (second_verdict, final):
        assert later.members[0].prompt.count(boxed(1)) == 2
        assert later.members[0].prompt.count(boxed(2)) == 1
        assert "Wrong." not in later.members[0].prompt


def test_state_labels_tell_the_story():
    episode = play_team({"verifier": [REJECT, APPROVE]})
    assert [event.state_label for event in episode.events] == [
        "question only",
        "3 competing drafts",
        "rejected drafts",
        "4 competing drafts",
        "approved drafts",
    ]


def test_the_label_of_a_routed_draft_says_who_was_chosen():
    routes = ["?", "<route>1, 3</route>"]
    episode = play_team({"router": routes, "verifier": APPROVE}, variant="routed")
    assert [event.state_label for event in episode.events[:3]] == [
        "question only",
        "question only",
        "question only, solvers 1, 3 chosen",
    ]


# --- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "kwargs", "metrics"),
    [
        ({"verifier": APPROVE}, {}, {"num_drafts": 3, "num_malformed_drafts": 0, "approved": True}),
        (
            {"solver": "?", "verifier": [REJECT, APPROVE]},
            {"num_solvers": 2},
            {"num_drafts": 3, "num_malformed_drafts": 2, "approved": True},
        ),
        ({"verifier": [APPROVE + REJECT, REJECT]}, {}, {"num_drafts": 3, "num_malformed_drafts": 0, "approved": False}),
        (
            {"router": "?"},
            {"variant": "routed"},
            {"num_drafts": 0, "num_malformed_drafts": 0, "approved": False},
        ),
    ],
)
def test_an_episode_says_how_its_drafting_went(answers, kwargs, metrics):
    assert play_team(answers, **kwargs).info["metrics"] == metrics


# --- any team -----------------------------------------------------------------------------------------------------

texts = st.sampled_from(
    ["", boxed(1), APPROVE, REJECT, "<route>1</route>", "<route>2, 3</route>", "<route>STOP</route>"]
)


@settings(max_examples=60)
@given(data=st.data(), variant=st.sampled_from(["fixed", "mixed", "routed"]), max_rounds=st.integers(1, 4))
def test_whatever_is_said_the_episode_ends_in_bounded_time(data, variant, max_rounds):
    env = SolverVerifier(NumberTasks(), variant=variant, max_rounds=max_rounds)
    episode = play(env, lambda active, member: data.draw(texts), seed=0)
    assert episode.terminated != episode.truncated
    assert len(episode.events) <= 3 * max_rounds + 1
    assert episode.truncated == all(event.event_type == "router" for event in episode.events)
    assert sum(event.event_type == "verifier" for event in episode.events) <= max_rounds
    malformed = sum(not member.is_valid for event in episode.events for member in event.members)
    assert episode.penalty == pytest.approx(0.1 * malformed)
    assert episode.events[0].team_return == pytest.approx(episode.reward - episode.penalty)


@pytest.mark.parametrize(
    "kwargs", [{"variant": "adaptive"}, {"num_solvers": 0}, {"max_rounds": 0}, {"variant": "Fixed"}]
)
def test_impossible_arguments_raise(kwargs):
    with pytest.raises(ValueError, match="expected"):
        SolverVerifier(NumberTasks(), **kwargs)


def test_one_solver_makes_every_event_a_singleton():
    episode = play_team({"verifier": [REJECT, APPROVE]}, variant="fixed", num_solvers=1)
    assert {event.cardinality for event in episode.events} == {1}
