"""Evidence: merging, whole passages within a budget, and what an episode's search was worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_world import passage

from srpo_envs.evidence import Evidence, QueryResult, Turn, query_key, search_metrics, supports
from srpo_envs.schedule import Reply


def result(query, *ids, agent="searcher_0", length=10):
    """One query that found passages of the given ids, each `length` characters long with its title."""
    found = tuple(passage(id, text="x" * (length - len(id))) for id in ids)
    return QueryResult(agent=agent, query=query, passages=found)


def evidence_of(*turns):
    return Evidence(tuple(Turn(results=tuple(results)) for results in turns))


def shown_ids(evidence, max_chars=10_000):
    """Ids under each query, turn by turn."""
    return [[[p.id for p in query.passages] for query in turn.queries] for turn in evidence.shown(max_chars).turns]


def verdict(word):
    return Reply(f"<verify>{word}</verify>", word, "", "verifier_0", "verifier", 0)


# --- merging ------------------------------------------------------------------------------------------------------


def test_passages_are_merged_best_rank_of_every_query_first():
    evidence = evidence_of([result("x", "a", "b", "c"), result("y", "d", "b", "e")], [result("z", "c", "f")])
    # Rank 1 of x and y, then rank 2 of both (b is the same passage), then rank 3; of the next turn only f is new.
    assert [p.id for p in evidence.passages] == ["a", "d", "b", "c", "e", "f"]
    assert evidence.num_queries == 3


def test_a_passage_stands_under_the_query_that_ranked_it_best():
    evidence = evidence_of([result("x", "a", "b"), result("y", "b", "c")])
    # b is second for x and first for y.
    assert shown_ids(evidence) == [[["a"], ["b", "c"]]]
    first, second = evidence.shown(10_000).turns[0].queries
    assert (first.num_repeated, second.num_repeated) == (1, 0)


def test_a_passage_of_an_earlier_turn_stays_there():
    evidence = evidence_of([result("x", "a", "b")], [result("y", "b", "a")])
    assert shown_ids(evidence) == [[["a", "b"]], [[]]]
    assert evidence.shown(10_000).turns[1].queries[0].num_repeated == 2


def test_of_equal_ranks_the_first_query_shows_the_passage():
    assert shown_ids(evidence_of([result("x", "a"), result("x", "a", agent="searcher_1")])) == [[["a"], []]]


def test_outputs_that_were_no_query_and_verdicts_are_shown_with_their_turn():
    bad = Reply("?", None, "no search tag", "searcher_1", "searcher", 1)
    evidence = Evidence().plus(Turn(malformed=(bad,))).plus(Turn(results=(result("x"),), verdict=verdict("reject")))
    first, second = evidence.shown(100).turns
    assert (first.queries, first.malformed, first.verdict) == ((), (bad,), None)
    assert (second.malformed, second.verdict) == ((), verdict("reject"))
    assert (second.queries[0].agent, second.queries[0].query) == ("searcher_0", "x")


def test_only_an_approval_approves():
    assert Turn(verdict=verdict("approve")).is_approved
    assert not Turn(verdict=verdict("reject")).is_approved
    assert not Turn().is_approved


def test_adding_a_turn_leaves_the_evidence_before_it_as_it_was():
    before = evidence_of([result("x", "a")])
    after = before.plus(Turn(results=(result("y", "b"),)))
    assert ([p.id for p in before.passages], [p.id for p in after.passages]) == (["a"], ["a", "b"])


# --- the budget ---------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_left_out_whole_and_counted():
    evidence = evidence_of([result("x", "a", "b", "c")])  # 10 characters each
    assert shown_ids(evidence, 29) == [[["a", "b"]]]
    (query,) = evidence.shown(29).turns[0].queries
    assert (len(query.passages), query.num_left_out, query.num_repeated) == (2, 1, 0)
    assert [len(p.title) + len(p.text) for p in query.passages] == [10, 10]
    assert shown_ids(evidence, 30) == [[["a", "b", "c"]]]
    assert shown_ids(evidence, 9) == [[[]]]


def test_the_best_of_every_query_comes_before_the_second_best_of_any():
    evidence = evidence_of([result("x", "a", "b"), result("y", "c", "d")])
    assert shown_ids(evidence, 20) == [[["a"], ["c"]]]
    assert shown_ids(evidence, 30) == [[["a", "b"], ["c"]]]


def test_newer_turns_come_before_older_ones_of_the_same_rank():
    evidence = evidence_of([result("x", "a", "b")], [result("y", "c", "d")])
    assert shown_ids(evidence, 10) == [[[]], [["c"]]]
    assert shown_ids(evidence, 20) == [[["a"]], [["c"]]]
    assert shown_ids(evidence, 30) == [[["a"]], [["c", "d"]]]


def test_a_shorter_passage_fills_the_room_a_longer_one_could_not():
    long, short = result("x", "a", length=50), result("y", "b", length=10)
    assert shown_ids(evidence_of([long, short]), 40) == [[[], ["b"]]]


ranked = st.lists(st.sampled_from("abcdefgh"), max_size=5, unique=True)
results = st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), ranked), max_size=4)
lengths = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 60))


@given(turns=st.lists(results, max_size=4), lengths=lengths, max_chars=st.integers(1, 300))
def test_whatever_was_found_each_passage_is_shown_at_most_once_within_the_budget(turns, lengths, max_chars):
    def found(query, ids):
        passages = tuple(passage(id, text="x" * lengths.get(id, 20)) for id in ids)
        return QueryResult(agent="searcher_0", query=query, passages=passages)

    evidence = Evidence(tuple(Turn(results=tuple(found(*pair) for pair in turn)) for turn in turns))
    shown = evidence.shown(max_chars)
    queries = [query for turn in shown.turns for query in turn.queries]
    everything = [result for turn in evidence.turns for result in turn.results]
    seen = [p for query in queries for p in query.passages]

    assert len({p.id for p in seen}) == len(seen)
    assert sum(len(p.title) + len(p.text) for p in seen) <= max_chars
    assert [query.query for query in queries] == [item.query for item in everything]
    for query, item in zip(queries, everything, strict=True):
        assert len(query.passages) + query.num_repeated + query.num_left_out == len(item.passages)
        assert all(p in item.passages for p in query.passages)  # whole, unchanged
    num_left_out = sum(query.num_left_out for query in queries)
    assert len(seen) + num_left_out == len(evidence.passages)
    # Nothing that is left out would still have fitted.
    room = max_chars - sum(len(p.title) + len(p.text) for p in seen)
    left_out = [p for p in evidence.passages if p.id not in {q.id for q in seen}]
    assert all(len(p.title) + len(p.text) > room for p in left_out)


# --- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("Capital of Peru", "capital of peru?", True),
        ("the capital of Peru", "capital  of Peru", True),
        ("capital of Peru", "Peru capital", False),
        ("?!", "?!", True),
        ("?!", "??", False),  # nothing is left of either, so the texts themselves decide
        ("the", "a", False),
    ],
)
def test_queries_count_as_the_same_in_other_spellings(first, second, same):
    assert (query_key(first) == query_key(second)) is same


def test_duplicates_within_a_set_and_across_turns_are_told_apart():
    evidence = evidence_of(
        [result("Peru"), result("the Peru!"), result("Lima")],  # one repeats within its set
        [result("Lima"), result("lima"), result("Cusco")],  # two repeat the turn before, one of them its own set too
        [result("Peru")],  # one repeats the first turn
    )
    values = search_metrics(evidence, ["x"], {})
    assert values["num_queries"] == 7.0
    assert values["num_tool_calls"] == 7.0  # another spelling is another search
    assert values["duplicate_queries_in_set"] == pytest.approx(2 / 7)
    assert values["duplicate_queries_across_turns"] == pytest.approx(3 / 7)
    assert values["num_turns"] == 3.0


def test_one_text_asked_twice_in_a_set_is_one_search():
    evidence = evidence_of([result("Peru"), result("Peru")], [result("Peru")])
    assert search_metrics(evidence, ["x"], {})["num_tool_calls"] == 2.0


def test_an_episode_without_a_query_has_its_metrics_too():
    assert search_metrics(Evidence((Turn(),)), ["x"], {"gold_titles": ["A"]}) == {
        "num_turns": 1.0,
        "num_queries": 0.0,
        "num_tool_calls": 0.0,
        "duplicate_queries_in_set": 0.0,
        "duplicate_queries_across_turns": 0.0,
        "evidence_support": 0.0,
        "gold_passage_recall": 0.0,
    }


def test_gold_passages_are_counted_by_id_or_else_by_title():
    evidence = evidence_of([result("x", "a", "b")])  # titled A and B
    assert search_metrics(evidence, [], {"gold_passage_ids": ["a", "c", "d", "a"]})["gold_passage_recall"] == 1 / 3
    # Titles are compared without case or surplus blanks, and one that is named twice is one passage.
    assert search_metrics(evidence, [], {"gold_titles": ["A", "a ", "C"]})["gold_passage_recall"] == 0.5
    both = {"gold_passage_ids": ["a"], "gold_titles": ["C"]}
    assert search_metrics(evidence, [], both)["gold_passage_recall"] == 1.0


def test_recall_is_not_claimed_where_the_data_names_no_passage():
    assert "gold_passage_recall" not in search_metrics(evidence_of([result("x", "a")]), ["x"], {})


@pytest.mark.parametrize(
    ("golds", "supported"),
    [
        (["Lima"], True),
        (["lima."], True),
        (["Cusco", "Lima"], True),  # any golden answer will do
        (["Lim"], False),  # whole words only
        (["Lima Peru"], False),
        (["the capital"], True),
        (["Andes"], True),  # a title is text too
        (["the", "?"], False),  # nothing to look for is not found
        ([], False),
        (["1,821"], True),
    ],
)
def test_evidence_supports_an_answer_that_stands_in_it_word_for_word(golds, supported):
    passages = [passage("1", "The capital is Lima; since 1,821 it has.", "The Andes")]
    assert supports(passages, golds) is supported


def test_an_answer_across_two_passages_is_not_supported():
    assert not supports([passage("1", "New"), passage("2", "York")], ["New York"])
