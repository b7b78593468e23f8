"""Multi-turn search: the event sequence of every variant, what each member sees, and what malformed text does to it."""

from __future__ import annotations

import pytest
from factories import APPROVE, REJECT
from hypothesis import given, settings
from hypothesis import strategies as st
from search_world import (
    ANSWERS,
    STOP,
    VILLAGE,
    AtlasTasks,
    play_script,
    route,
    say,
    search,
)

import srpo_envs
from srpo_envs.audit import audit_episodes, event_table
from srpo_envs.search import ScriptedRetriever
from srpo_envs.workflows.search import Search

DIRECTOR, COUNTRY, CAPITAL = "director of Silver Tide", "country of Varna", "capital of Bulgaria"


def make(variant="routed", **kwargs):
    return Search(AtlasTasks(), variant=variant, **{"retriever": ScriptedRetriever(ANSWERS), **kwargs})


def sequence(episode):
    return [(event.event_type, event.cardinality) for event in episode.events]


def turns(episode):
    return [event.turn for event in episode.events]


def tool_calls(event):
    return [call.arguments["query"] for call in event.tool_calls if call.kind == "tool"]


# --- the two traces of the paper's appendix E.1, with texts of our own ----------------------------------------------


def search_rows(episode):
    """The audit's rows of search events, without the column that names them."""
    kept = [row for row in event_table(episode) if row["event"].split()[1] in ("searcher", "refinement")]
    return [tuple(row.values())[1:] for row in kept]


def test_trace_parallel_decomposition_followed_by_targeted_refinement():
    episode = play_script(
        make(),
        ("router", route(1, 2)),
        ("searcher", search(DIRECTOR), search(COUNTRY)),
        ("verifier", "Film and country are known, the capital is not. " + REJECT),
        ("router", route(1)),
        ("refinement", search(CAPITAL)),
        ("verifier", APPROVE),
        ("router", STOP),
        ("answerer", say("Sofia")),
    )
    # Both queries together bring two passages, one of them twice; the third query adds one that is new.
    assert search_rows(episode) == [
        ("question, no evidence, searchers 1, 2", "2 searcher", "2 passages (2 tool calls)", 2),
        ("2 passages, judged insufficient, searcher 1", "1 searcher", "3 passages (1 tool calls)", 1),
    ]
    assert episode.reward == 1.0


def test_trace_entity_disambiguation_and_evidence_completion():
    episode = play_script(
        make(),
        ("router", route(1, 2, 3)),
        ("searcher", search("John Hale"), search("Salt Road author"), search("John Hale birthplace")),
        ("verifier", "The poet is meant, born in Dunford; its county is missing. " + REJECT),
        ("router", route(1, 3)),
        ("refinement", search("Dunford county"), search("Dunford location")),
        ("verifier", APPROVE),
        ("router", STOP),
        ("answerer", say("Surrey")),
        task_index=1,
    )
    assert search_rows(episode) == [
        ("question, no evidence, searchers 1, 2, 3", "3 searcher", "3 passages (3 tool calls)", 3),
        ("3 passages, judged insufficient, searchers 1, 3", "2 searcher", "5 passages (2 tool calls)", 2),
    ]
    assert episode.reward == 1.0


# --- routed -------------------------------------------------------------------------------------------------------


def test_the_router_opens_every_turn_and_ends_the_search():
    episode = play_script(
        make(),
        ("router", route(3, 1)),
        ("searcher", search(DIRECTOR), search(COUNTRY)),
        ("verifier", APPROVE),
        ("router", STOP),
        ("answerer", say("Sofia")),
    )
    assert turns(episode) == [0, 0, 0, 1, 1]
    assert [member.agent for member in episode.events[1].members] == ["searcher_2", "searcher_0"]  # as it named them
    assert (episode.terminated, episode.info["stopped_by"], episode.info["answer"]) == (True, "router", "Sofia")
    assert episode.info["metrics"]["num_turns"] == 1.0


def test_stop_at_once_asks_the_answerer_without_a_search():
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(make(retriever=retriever), ("router", STOP), ("answerer", say("Sofia")))
    assert (episode.reward, episode.info["stopped_by"]) == (1.0, "router")
    assert retriever.queries == []
    assert episode.info["metrics"]["num_turns"] == 0.0


def test_the_verifiers_word_is_advice_to_the_router_and_ends_nothing():
    episode = play_script(
        make(max_turns=2),
        ("router", route(1)),
        ("searcher", search(DIRECTOR)),
        ("verifier", APPROVE),
        ("router", route(2)),
        ("refinement", search(COUNTRY)),
        ("verifier", REJECT),
        ("answerer", say("Sofia")),
    )
    assert episode.events[3].members[0].prompt.endswith("verdict: approve\n2/2 route 1 to 3")
    assert episode.info["stopped_by"] == "max_turns"


def test_a_searcher_named_twice_acts_once():
    episode = play_script(
        make(max_turns=1),
        ("router", "<route>[2, 2, 1]</route>"),
        ("searcher", search(DIRECTOR), search(COUNTRY)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    assert [member.agent for member in episode.events[1].members] == ["searcher_1", "searcher_0"]


BAD_ROUTES = ["", "all", "STOP", "<route>all</route>", "<route>0</route>", "<route>1, 4</route>", "<route></route>"]


@pytest.mark.parametrize("text", [*BAD_ROUTES, STOP + STOP, "<think>" + STOP, STOP + route(1)])
def test_a_malformed_route_is_neither_stop_nor_all_and_spends_the_turn(text):
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(
        make(max_turns=2, retriever=retriever),
        ("router", text),
        ("router", route(2)),
        ("searcher", search(DIRECTOR)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    first, again = episode.events[:2]
    assert (first.penalty, first.members[0].is_valid, first.members[0].parsed) == (0.1, False, None)
    assert turns(episode) == [0, 1, 1, 1, 1]
    assert again.state_label == "question, no evidence"
    assert f"router_0 malformed: {first.members[0].malformed_reason}" in again.members[0].prompt
    assert retriever.queries == [DIRECTOR]


def test_routes_malformed_to_the_end_lead_to_an_answer_without_evidence():
    episode = play_script(make(max_turns=2), ("router", "?"), ("router", "?"), ("answerer", say("Sofia")))
    assert (episode.info["stopped_by"], episode.reward) == ("max_turns", 1.0)
    assert episode.penalty == pytest.approx(0.2)
    assert episode.events[0].team_return == pytest.approx(1.0 - 0.2)


def test_at_limit_truncate_ends_without_an_answer():
    tasks = AtlasTasks()
    env = Search(tasks, retriever=ScriptedRetriever(ANSWERS), max_turns=1, at_limit="truncate")
    episode = play_script(env, ("router", route(1)), ("searcher", search(DIRECTOR)), ("verifier", APPROVE))
    assert (episode.truncated, episode.terminated, episode.reward) == (True, False, 0.0)
    assert (episode.info["stopped_by"], episode.info["correct"], episode.info["answer"]) == ("max_turns", False, None)
    assert episode.info["metrics"]["num_queries"] == 1.0
    assert tasks.graded == []


def test_at_limit_truncate_leaves_a_stop_in_time_alone():
    episode = play_script(make(max_turns=1, at_limit="truncate"), ("router", STOP), ("answerer", say("Sofia")))
    assert (episode.terminated, episode.reward) == (True, 1.0)


# --- fixed --------------------------------------------------------------------------------------------------------


def test_fixed_searches_with_everybody_until_the_verifier_approves():
    episode = play_script(
        make("fixed", num_searchers=2),
        ("searcher", search(DIRECTOR), search(COUNTRY)),
        ("verifier", REJECT),
        ("refinement", search(CAPITAL), search(DIRECTOR)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    assert turns(episode) == [0, 0, 1, 1, 1]
    assert (episode.info["stopped_by"], episode.reward) == ("verifier", 1.0)
    assert "router" not in make("fixed").roles


def test_fixed_answers_after_the_last_turn_approved_or_not():
    episode = play_script(
        make("fixed", num_searchers=1, max_turns=1),
        ("searcher", search(DIRECTOR)),
        ("verifier", REJECT),
        ("answerer", say("Sofia")),
    )
    assert episode.info["stopped_by"] == "max_turns"


def test_fixed_with_at_limit_truncate_answers_only_what_was_approved():
    searched = (("searcher", search(DIRECTOR)),)
    env = make("fixed", num_searchers=1, max_turns=1, at_limit="truncate")
    assert play_script(env, *searched, ("verifier", REJECT)).truncated
    assert play_script(env, *searched, ("verifier", "?")).truncated
    assert play_script(env, *searched, ("verifier", APPROVE), ("answerer", say("Sofia"))).terminated


def test_one_searcher_makes_every_event_a_singleton():
    episode = play_script(
        make("fixed", num_searchers=1),
        ("searcher", search(DIRECTOR)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    assert {event.cardinality for event in episode.events} == {1}


# --- malformed outputs --------------------------------------------------------------------------------------------

BAD_QUERIES = ["", "Silver Tide", "<search>x</search>", search("x") + search("y"), search(" "), say("x"), "<think>hm"]


@pytest.mark.parametrize("text", BAD_QUERIES)
def test_a_malformed_search_is_charged_and_the_other_queries_count(text):
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(
        make("fixed", num_searchers=2, retriever=retriever),
        ("searcher", text, search(DIRECTOR)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    event = episode.events[0]
    assert (event.cardinality, event.penalty) == (2, 0.1)  # K counts the outputs that were sampled, valid or not
    assert retriever.queries == [DIRECTOR]
    assert episode.info["metrics"]["num_queries"] == 1.0
    assert "searcher_0 malformed: " in episode.events[1].members[0].prompt


def test_where_nobody_gave_a_query_there_is_nothing_to_judge():
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(
        make("fixed", num_searchers=2, max_turns=2, retriever=retriever),
        ("searcher", "?", ""),
        ("searcher", search(DIRECTOR), search(COUNTRY)),  # still the first search: nothing is known yet
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    assert episode.events[0].penalty == pytest.approx(0.2)
    assert turns(episode) == [0, 1, 1, 1]
    assert episode.events[1].members[0].prompt.count("malformed: no think tag") == 2
    assert retriever.queries == [DIRECTOR, COUNTRY]


BAD_VERDICTS = ["", "approve", "<verify>maybe</verify>", APPROVE + REJECT, "<verify>approve"]


@pytest.mark.parametrize("text", BAD_VERDICTS)
def test_a_malformed_verdict_is_no_approval_and_the_search_goes_on(text):
    episode = play_script(
        make("fixed", num_searchers=1),
        ("searcher", search(DIRECTOR)),
        ("verifier", text),
        ("refinement", search(COUNTRY)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    assert episode.events[1].penalty == 0.1
    assert episode.events[2].state_label == "1 passage, searcher 1"  # found, but not judged
    assert "verifier_0 malformed: " in episode.events[2].members[0].prompt
    assert episode.info["stopped_by"] == "verifier"


def test_a_malformed_answer_earns_nothing_and_is_charged():
    tasks = AtlasTasks()
    env = Search(tasks, retriever=ScriptedRetriever(ANSWERS))
    episode = play_script(env, ("router", STOP), ("answerer", "Sofia"))
    assert (episode.reward, episode.penalty, episode.terminated) == (0.0, pytest.approx(0.1), True)
    assert tasks.graded == []


def test_the_answer_is_graded_as_it_stands_in_its_tag():
    tasks = AtlasTasks()
    env = Search(tasks, retriever=ScriptedRetriever(ANSWERS))
    assert play_script(env, ("router", STOP), ("answerer", say(" sofiya. "))).reward == 1.0
    assert play_script(env, ("router", STOP), ("answerer", say("Varna"))).reward == 0.0
    assert tasks.graded == ["sofiya.", "Varna"]


# --- observations -------------------------------------------------------------------------------------------------


def two_turns(**kwargs):
    return play_script(
        make(**kwargs),
        ("router", route(1, 2)),
        ("searcher", search(DIRECTOR), search(COUNTRY)),
        ("verifier", REJECT),
        ("router", route(1)),
        ("refinement", search(CAPITAL)),
        ("verifier", APPROVE),
        ("router", STOP),
        ("answerer", say("Sofia")),
    )


def test_a_set_queries_from_one_state_and_nobody_sees_what_is_sampled_beside_it():
    first, second = two_turns().events[1].members
    # Who searches is known to all of them, so that work can be shared out; what they ask is not.
    assert first.prompt.endswith("\n1/3 searcher 1 of 1, 2")
    assert second.prompt == first.prompt.replace("searcher 1 of", "searcher 2 of")
    assert COUNTRY not in first.prompt
    assert "asked" not in second.prompt


def test_on_the_first_turn_there_is_no_history():
    tasks, episode = AtlasTasks(), two_turns()
    question = tasks.task(0).question
    assert episode.events[0].members[0].prompt == f"{question}\n1/3 route 1 to 3"


def test_what_a_set_found_is_merged_and_shown_before_the_next_routing_decision():
    route_again = two_turns().events[3].members[0].prompt.splitlines()
    assert route_again[1:] == [
        "searcher_0 asked 'director of Silver Tide' (0 repeated, 0 left out)",
        "[film] Silver Tide: Silver Tide is a film of 1961. Its director, Ana Orlova, was born in Varna.",
        "searcher_1 asked 'country of Varna' (1 repeated, 0 left out)",  # it found the film again
        "[varna] Varna: Varna is a port in Bulgaria.",
        "verdict: reject",
        "2/3 route 1 to 3",
    ]


def test_the_verifier_sees_what_its_turn_found_and_the_answerer_sees_everything():
    episode = two_turns()
    assert "[varna]" in episode.events[2].members[0].prompt
    answerer = episode.events[-1].members[0].prompt
    assert all(answerer.count(f"[{id}]") == 1 for id in ("film", "varna", "bulgaria"))
    assert answerer.endswith("3/3 answerer")


def test_cardinality_counts_outputs_however_many_passages_came():
    episode = two_turns()
    assert [event.cardinality for event in episode.events] == [1, 2, 1, 1, 1, 1, 1, 1]
    assert [len(event.tool_calls[0].result) for event in (episode.events[1], episode.events[4])] == [1, 2]


def test_the_evidence_is_cut_to_whole_passages_and_the_prompt_says_so():
    # The film has 87 characters with its title; at 100 it fits and Varna's 32 do not.
    answerer = two_turns(max_evidence_chars=100).events[2].members[0].prompt
    assert "[film]" in answerer
    assert "[varna]" not in answerer
    assert "searcher_1 asked 'country of Varna' (1 repeated, 1 left out)" in answerer


def test_state_labels_tell_the_story():
    assert [event.state_label for event in two_turns().events] == [
        "question, no evidence",
        "question, no evidence, searchers 1, 2",
        "2 passages",
        "2 passages, judged insufficient",
        "2 passages, judged insufficient, searcher 1",
        "3 passages",
        "3 passages, judged sufficient",
        "3 passages, judged sufficient",
    ]


# --- queries and what they cost -----------------------------------------------------------------------------------


def test_one_query_asked_twice_in_a_set_is_searched_once_and_counts_twice():
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(
        make("fixed", retriever=retriever, max_turns=1),
        ("searcher", search(DIRECTOR), search(COUNTRY), search(DIRECTOR)),
        ("verifier", APPROVE),
        ("answerer", say("Sofia")),
    )
    assert retriever.queries == [DIRECTOR, COUNTRY]
    assert tool_calls(episode.events[0]) == [DIRECTOR, COUNTRY]
    metrics = episode.info["metrics"]
    assert (metrics["num_queries"], metrics["num_tool_calls"]) == (3.0, 2.0)
    assert metrics["duplicate_queries_in_set"] == pytest.approx(1 / 3)
    assert metrics["duplicate_queries_across_turns"] == 0.0
    assert "searcher_2 asked 'director of Silver Tide' (1 repeated, 0 left out)" in episode.events[1].members[0].prompt


def test_a_query_of_an_earlier_turn_is_searched_again_and_counted_as_a_duplicate():
    retriever = ScriptedRetriever(ANSWERS)
    episode = play_script(
        make("fixed", retriever=retriever, num_searchers=1, max_turns=2),
        ("searcher", search(DIRECTOR)),
        ("verifier", REJECT),
        ("refinement", search(DIRECTOR.upper())),  # another spelling finds nothing here
        ("verifier", REJECT),
        ("answerer", say("Sofia")),
    )
    assert retriever.queries == [DIRECTOR, DIRECTOR.upper()]
    assert episode.info["metrics"]["duplicate_queries_across_turns"] == 0.5


def test_metrics_of_an_episode():
    metrics = two_turns().info["metrics"]
    assert metrics == {
        "num_turns": 2.0,
        "num_queries": 3.0,
        "num_tool_calls": 3.0,
        "duplicate_queries_in_set": 0.0,
        "duplicate_queries_across_turns": 0.0,
        "evidence_support": 1.0,  # "Sofia" stands in the passage on Bulgaria
        "gold_passage_recall": 1.0,
    }


def test_queries_are_paid_for_out_of_the_team_reward():
    right = two_turns(query_cost=0.05)
    assert right.reward == pytest.approx(1.0 - 3 * 0.05)
    assert right.info["correct"] is True
    wrong = play_script(
        make("fixed", query_cost=0.05, num_searchers=2, max_turns=1, at_limit="truncate"),
        ("searcher", search(DIRECTOR), "?"),  # no query, no cost: the penalty is charged apart
        ("verifier", REJECT),
    )
    assert wrong.reward == pytest.approx(-0.05)
    assert wrong.penalty == pytest.approx(0.1)


# --- any team -----------------------------------------------------------------------------------------------------

texts = st.one_of(
    st.sampled_from([STOP, route(1), route(2, 1), route(3, 1, 2), APPROVE, REJECT, say("Bako"), say(""), "\ud800"]),
    st.sampled_from(["Bafa", "age of Bafa", "\ud800 $history", "</search>", "nobody"]).map(search),
    st.text(max_size=12),
    st.text(max_size=12).map(search),
)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    env_id=st.sampled_from(["VillageSearch-v0", "VillageSearchFixed-v0", "VillageSearchAgent-v0"]),
    max_turns=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_said_the_audit_stays_clean_and_the_episode_ends(data, env_id, max_turns, seed):
    env = srpo_envs.make(env_id, retriever=VILLAGE, max_turns=max_turns, max_evidence_chars=150, query_cost=0.01)
    active = env.reset(seed=seed)
    while active is not None:
        active = env.step(active.outputs([data.draw(texts) for _ in active.members])).next
    episode = env.episode

    report = audit_episodes([episode], replay=True)
    assert report.is_ok, report.summary()
    assert report.num_replayed == 1
    assert episode.terminated != episode.truncated
    assert len(episode.events) <= 3 * max_turns + 1
    metrics = episode.info["metrics"]
    replies = [member for event in episode.events for member in event.members if member.is_valid]
    num_queries = sum(m.role == "searcher" or (m.role == "agent" and m.parsed[0] == "search") for m in replies)
    # The single agent's query in its last step comes too late to be searched.
    is_late = "Agent" in env_id and episode.truncated and episode.events[-1].members[0].is_valid
    assert metrics["num_queries"] == num_queries - is_late
    assert metrics["num_tool_calls"] == sum(len(tool_calls(event)) for event in episode.events)
    assert metrics["num_turns"] <= max_turns
    malformed = sum(not member.is_valid for event in episode.events for member in event.members)
    assert episode.penalty == pytest.approx(0.1 * malformed)
    graded = float(episode.info["correct"])
    assert episode.reward == pytest.approx(graded - 0.01 * metrics["num_queries"])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"variant": "mixed"},
        {"variant": "Routed"},
        {"num_searchers": 0},
        {"at_limit": "stop"},
        {"top_k": 0},
        {"max_turns": 0},
        {"max_evidence_chars": 0},
        {"query_cost": -0.1},
        {"query_cost": float("nan")},
    ],
)
def test_impossible_arguments_raise(kwargs):
    with pytest.raises(ValueError, match="expected"):
        make(**kwargs)
