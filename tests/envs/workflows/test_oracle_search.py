"""Searching well must pay: the scripted team of the benchmark against one search for the question."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from retrieval.bm25 import Bm25Index
from srpo_envs.audit import audit_episodes
from srpo_envs.search import Passage
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.question_answering import QuestionAnswering

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("SRPO_DATA") or ROOT.parent / "shared" / "data") / "hotpotqa"

CORPUS = [
    Passage(id="1", title="Silver Tide", text="Silver Tide is a film of 1961 directed by Ana Orlova."),
    Passage(id="2", title="Ana Orlova", text="Ana Orlova (1920 to 1999) was born in Varna."),
    Passage(id="3", title="Salt Road", text="Salt Road is a book of poems by John Hale."),
    Passage(id="4", title="John Hale", text="John Hale kept a mill in Dunford."),
    Passage(id="5", title="Mill Lane", text="Mill Lane is a street in Dunford."),
    Passage(id="6", title="Born", text="The film of a born director: in which city was the director of the film born?"),
    Passage(
        id="7", title="Where", text="Where did the author live? The author of the book lived where the author lived."
    ),
    Passage(id="8", title="City films", text="Films in which a city is the star, and the director of each film."),
    Passage(id="9", title="Older books", text="A book older than the film is often older than its director."),
]
QUESTIONS = [
    ("In which city was the director of Silver Tide born?", ["Varna"], ["Silver Tide", "Ana Orlova"]),
    ("Where did the author of Salt Road live?", ["Dunford"], ["Salt Road", "John Hale", "Salt Road"]),
    ("Is the book Salt Road older than the film Silver Tide?", ["no"], ["Salt Road", "Silver Tide"]),
    ("Is the author of Salt Road older than the director of Silver Tide?", ["yes"], ["John Hale", "Ana Orlova"]),
]


@pytest.fixture
def oracle_search(monkeypatch):
    """The benchmark as a module; it takes its own folder from the path again."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    monkeypatch.delitem(sys.modules, "oracle_search", raising=False)
    import oracle_search

    return oracle_search


@pytest.fixture
def tasks(tmp_path):
    rows = [
        {"question": question, "golden_answers": golds, "supporting_titles": titles}
        for question, golds, titles in QUESTIONS
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return QuestionAnswering("custom", path=path)


def test_the_oracle_team_reaches_what_one_search_does_not(oracle_search, tasks):
    index = Bm25Index.from_corpus(CORPUS)
    rewards = {}
    for strategy in oracle_search.STRATEGIES:
        episodes = oracle_search.play(tasks, index, strategy)
        rewards[strategy.name] = [episode.reward for episode in episodes]
        searches = [episode.events[1].cardinality for episode in episodes]
        assert searches == ([2] * 4 if "titles" in strategy.name else [1] * 4)
    assert rewards["gold titles, top 3"] == rewards["gold titles, top 1"] == [1.0] * 4
    # The words of the first two questions are those of distractors. Both passages of the third are named in it; those
    # of the last are named nowhere, and "yes" is no answer without them.
    assert rewards["question, top 3"] == [0.0, 0.0, 1.0, 0.0]


def test_an_answer_must_stand_in_the_evidence_and_a_yes_needs_every_gold_passage(oracle_search):
    named = Task("t/0", "Where?", ("Varna",), {"gold_titles": ("Silver Tide", "Ana Orlova")})
    yes = Task("t/1", "Is it?", ("Yes",), {"gold_titles": ("Silver Tide", "Ana Orlova")})
    film, director = CORPUS[:2]
    assert oracle_search.is_answerable(named, [director])
    assert not oracle_search.is_answerable(named, [film])
    assert oracle_search.is_answerable(yes, [film, director])
    assert not oracle_search.is_answerable(yes, [film, Passage(id="x", title="Yes", text="yes")])


def test_the_table_tells_kinds_of_questions_apart(oracle_search, tasks):
    lines = oracle_search.table(tasks, Bm25Index.from_corpus(CORPUS))
    assert [line.split("|")[1].strip() for line in lines[2:]] == [s.name for s in oracle_search.STRATEGIES]
    assert lines[2].endswith("| 1.00 |")
    assert len({line.count("|") for line in lines}) == 1


@pytest.fixture(scope="module")
def hotpotqa():
    for name in ("questions.jsonl", "corpus.jsonl"):
        if not (DATA / name).is_file():
            pytest.skip(f"no hotpotqa/{name}: set SRPO_DATA to the folder that holds it")
    return QuestionAnswering("custom", path=DATA / "questions.jsonl"), Bm25Index.from_corpus(DATA / "corpus.jsonl")


def test_on_real_questions_the_oracle_team_reaches_the_answers_and_one_search_does_not(oracle_search, hotpotqa):
    found = {s.name: oracle_search.play(*hotpotqa, s) for s in oracle_search.STRATEGIES}
    reached = {name: sum(episode.reward for episode in episodes) for name, episodes in found.items()}
    # Measured on the 50 questions: 49, 47, 27 and 32.
    assert reached["gold titles, top 3"] >= 48
    assert reached["gold titles, top 1"] >= 45
    assert reached["question, top 3"] <= 30
    assert reached["question, top 6"] <= 35
    report = audit_episodes(episode for episodes in found.values() for episode in episodes)
    assert report.is_ok, report.summary()
    assert report.num_episodes == 200
