from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.evidence import Evidence, QueryResult, Turn
from srpo_envs.schedule import Reply
from srpo_envs.search import open_retriever
from srpo_envs.tasks.village import (
    LEVELS,
    NUM_PEOPLE,
    PERSON_RELATIONS,
    RELATIONS,
    Village,
    facts,
    passages,
    people,
    split_of,
    write_query,
)

ROLES = ("router", "searcher", "verifier", "answerer", "agent")
CORPUS = {passage.id: passage for passage in passages()}


def of_kind(kind, num=40, split="train"):
    tasks = (Village(level=4, split=split).task(index) for index in range(num * 4))
    return [task for task in tasks if task.info["kind"] == kind]


def told(passage_id):
    """The value a passage gives."""
    return CORPUS[passage_id].text.removesuffix(".").split()[-1]


# --- the world ----------------------------------------------------------------------------------------------------


def test_everybody_has_three_different_others_and_an_age():
    assert len(set(people())) == NUM_PEOPLE == len(facts())
    for name, known in facts().items():
        others = [known[relation] for relation in PERSON_RELATIONS]
        assert len({name, *others}) == 4
        assert set(others) <= set(people())
        assert 10 <= int(known["age"]) <= 99


def test_the_corpus_tells_each_fact_in_one_passage_titled_with_its_subject():
    assert len(CORPUS) == NUM_PEOPLE * len(RELATIONS)
    for name, known in facts().items():
        for relation, value in known.items():
            passage = CORPUS[f"{name}-{relation}"]
            assert (passage.title, passage.text) == (name, f"The {relation} of {name} is {value}.")


def test_the_first_hit_of_every_query_is_its_fact():
    wanted = [(write_query(relation, name), f"{name}-{relation}") for name in people() for relation in RELATIONS]
    found = open_retriever(Village.default_retriever).search([query for query, _ in wanted], 1)
    assert [[passage.id for passage in hits] for hits in found] == [[passage_id] for _, passage_id in wanted]


# --- questions ----------------------------------------------------------------------------------------------------


def work_out(description):
    """Follow ``the age of the boss of Bako`` as a person would."""
    *relations, name = description.removeprefix("the ").replace(" the ", " ").split(" of ")
    for relation in reversed(relations):
        name = facts()[name][relation]
    return name


@pytest.mark.parametrize(("kind", "num_hops", "is_pair"), [
    ("lookup", 1, False), ("chain", 2, False), ("pair", 1, True), ("pair_of_chains", 2, True),
])  # fmt: skip
def test_every_gold_is_the_answer_of_its_question(kind, num_hops, is_pair):
    for task in of_kind(kind):
        asked = task.question.removeprefix("Name ").removesuffix(".").removeprefix("1) ").split(" and 2) ")
        assert len(asked) == 1 + is_pair
        assert all(description.count("the ") == num_hops for description in asked)
        assert task.gold == " and ".join(map(work_out, asked))


def test_the_last_turn_s_passages_tell_the_answer_and_each_leads_to_the_next():
    for index in range(160):
        task = Village(level=4).task(index)
        turns = [[query.split(" of ") for query in queries] for queries in task.info["queries"]]
        assert task.gold == " and ".join(told(f"{name}-{relation}") for relation, name in turns[-1])
        for before, after in itertools.pairwise(turns):
            assert [told(f"{name}-{relation}") for relation, name in before] == [name for _, name in after]


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_asks_its_kinds_equally_often(level):
    tasks = Village(level=level, size=24)
    counts = Counter(tasks.task(index).info["kind"] for index in range(24))
    assert set(counts) == set(LEVELS[level])
    assert set(counts.values()) == {24 // len(LEVELS[level])}


@given(
    level=st.sampled_from(sorted(LEVELS)),
    split=st.sampled_from(["train", "test"]),
    seed=st.integers(0, 50),
    index=st.integers(0, 5000),
)
def test_a_question_belongs_to_its_split_and_its_passages_exist(level, split, seed, index):
    task = Village(level=level, split=split, seed=seed).task(index)
    assert split_of(task.question) == split
    queries = list(itertools.chain(*task.info["queries"]))
    assert [write_query(*reversed(p.split("-"))) for p in task.info["gold_passage_ids"]] == queries
    assert set(task.info["gold_passage_ids"]) <= set(CORPUS)
    assert task == Village(level=level, split=split, seed=seed).task(index)


def test_splits_do_not_overlap_and_one_question_in_ten_is_held_out():
    train = {Village(level=4).task(index).question for index in range(600)}
    test = {Village(level=4, split="test").task(index).question for index in range(600)}
    assert not train & test
    questions = [f"Name the {relation} of {name}." for name in people() for relation in RELATIONS]
    # 800 questions: a tenth is 80, four standard deviations 34.
    assert 46 < sum(split_of(question) == "test" for question in questions) < 114


@pytest.mark.parametrize("changes", [{"level": 9}, {"split": "dev"}, {"size": 0}])
def test_what_there_is_not_is_refused(changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))}: expected"):
        Village(**changes)


# --- words and grading --------------------------------------------------------------------------------------------


def test_every_role_has_a_prompt_and_a_limit():
    tasks = Village()
    assert all("$question$history" in tasks.prompt(role) and tasks.max_new_tokens(role) > 4 for role in ROLES)


def test_right_answers_earn_one_and_others_nothing():
    tasks = Village(level=1)
    task = tasks.task(0)
    assert tasks.grade(task, task.gold) == tasks.grade(task, f" {task.gold.lower()}.") == 1.0
    assert tasks.grade(task, "unknown") == tasks.grade(task, "") == 0.0


def reply(role, parsed="", reason=""):
    return Reply("", parsed or None, reason, f"{role}_0", role, 0)


def test_evidence_is_one_line_for_each_passage_and_a_word_for_what_brought_none():
    one, two, *_ = passages()
    turns = (
        Turn(
            results=(
                QueryResult(agent="searcher_0", query="a", passages=(one,)),
                QueryResult(agent="searcher_1", query="b", passages=()),
            ),
            verdict=reply("verifier", "reject"),
        ),
        Turn(
            results=(
                QueryResult(agent="searcher_0", query="a", passages=(one,)),
                QueryResult(agent="searcher_1", query="c", passages=(two,)),
            ),
            malformed=(reply("searcher", reason="no search tag"),),
        ),
    )
    written = Village().render_evidence(Evidence(turns).shown(10_000))
    assert written == f"\n{one.text}\nnothing\nreject\nrepeated\n{two.text}\nmalformed"
