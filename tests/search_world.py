"""A small world to search in, a task family over it, and the words of its roles, for the tests of search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.evidence import ShownEvidence, ShownQuery
from srpo_envs.grading import score_qa
from srpo_envs.parsing import parse_answer
from srpo_envs.records import Episode
from srpo_envs.schedule import Reply
from srpo_envs.search import Passage, ScriptedRetriever, register_retriever
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.village import passages, write_query

STOP = "<route>STOP</route>"


def route(*searchers: int) -> str:
    """Return a router's text that activates searchers, counted from 1."""
    return f"<route>{', '.join(map(str, searchers))}</route>"


def search(query: object) -> str:
    """Return a searcher's text."""
    return f"<think>hm</think><search>{query}</search>"


def say(answer: object) -> str:
    """Return an answerer's text."""
    return f"<think>hm</think><answer>{answer}</answer>"


def passage(id: str, text: str = "", title: str = "", score: float = 1.0) -> Passage:
    """Return a passage that says its id where nothing else is given."""
    return Passage(id=id, title=title or id.upper(), text=text or f"Text of {id}.", score=score)


# The film and the poet are made up.
FILM = passage("film", "Silver Tide is a film of 1961. Its director, Ana Orlova, was born in Varna.", "Silver Tide")
VARNA = passage("varna", "Varna is a port in Bulgaria.", "Varna")
BULGARIA = passage("bulgaria", "Bulgaria lies in Europe. Its capital is Sofia.", "Bulgaria")
POET = passage("poet", "John Hale (poet) wrote Salt Road. He was born in Dunford.", "John Hale (poet)")
BOXER = passage("boxer", "John Hale (boxer) fought in Leeds.", "John Hale (boxer)")
BOOK = passage("book", "Salt Road is a book of poems by John Hale.", "Salt Road")
DUNFORD = passage("dunford", "Dunford is a village on the river Wey in Surrey.", "Dunford")
SURREY = passage("surrey", "Surrey is a county. Its villages include Dunford.", "Surrey")

ANSWERS = {
    "director of Silver Tide": [FILM],
    "country of Varna": [VARNA, FILM],
    "capital of Bulgaria": [BULGARIA, VARNA],
    "John Hale": [BOXER, POET],
    "Salt Road author": [BOOK, POET],
    "John Hale birthplace": [POET],
    "Dunford county": [SURREY, DUNFORD],
    "Dunford location": [DUNFORD, SURREY],
}
"""What the search engine of this world finds."""


class AtlasTasks:
    """Two questions of several hops, and prompts that show all there is to see."""

    name = "atlas"
    num_tasks = 2
    default_retriever = "nowhere:atlas"
    parse_answer = staticmethod(parse_answer)

    def __init__(self) -> None:
        self.graded: list[Any] = []  # every answer the grader really saw

    def task(self, index: int) -> Task:
        return (
            Task(
                "atlas/0",
                "What is the capital of the country where the director of Silver Tide was born?",
                ["Sofia", "Sofiya"],
                {"gold_passage_ids": ["film", "varna", "bulgaria"]},
            ),
            Task(
                "atlas/1",
                "In which county was the author of Salt Road born?",
                ["Surrey"],
                {"gold_titles": ["Salt Road", "John Hale (poet)", "john  hale (POET)", "Dunford"]},
            ),
        )[index]

    def prompt(self, role: str) -> str:
        seen = "$question$history\n$turn/$max_turns "
        words = {"router": "route 1 to $num_searchers", "searcher": "searcher $seat of $active"}
        return seen + words.get(role, role)

    def stop(self, role: str) -> tuple[str, ...]:
        return ()

    def max_new_tokens(self, role: str) -> int:
        return 64

    def grade(self, task: Task, answer: Any) -> float:
        self.graded.append(answer)
        return float(score_qa(answer, task.golds)[0])

    def render_context(self, replies: Sequence[Reply]) -> str:
        return ""

    def render_evidence(self, evidence: ShownEvidence) -> str:
        lines = []
        for turn in evidence.turns:
            for query in turn.queries:
                lines += [f"{query.agent} asked {query.query!r}{_counts(query)}"]
                lines += [f"[{found.id}] {found.title}: {found.text}" for found in query.passages]
            lines += [f"{reply.agent} malformed: {reply.malformed_reason}" for reply in turn.malformed]
            if turn.verdict is not None:
                lines.append(f"verdict: {turn.verdict.parsed}")
        return "".join("\n" + line for line in lines)


def _counts(query: ShownQuery) -> str:
    return f" ({query.num_repeated} repeated, {query.num_left_out} left out)"


def play_script(env: SetEnv, *steps: tuple[str, ...], task_index: int = 0, seed: int = 0) -> Episode:
    """Play one episode to its end: each step names the event that must be pending, and the texts of its whole set."""
    active = env.reset(seed=seed, options={"task_index": task_index})
    for event_type, *texts in steps:
        assert active is not None, f"the episode is over before {event_type!r}"
        assert (active.event_type, active.cardinality) == (event_type, len(texts))
        active = env.step(active.outputs(texts)).next
    assert active is None, f"{active.event_type!r} is still pending"
    return env.episode


def village_retriever() -> ScriptedRetriever:
    """Return a search engine that finds a fact of the village by its exact query, and three facts by a name."""
    answers: dict[str, list[Passage]] = {}
    for found in passages():
        answers[write_query(found.id.rpartition("-")[2], found.title)] = [found]
        answers.setdefault(found.title, []).append(found)
    return ScriptedRetriever(answers)


VILLAGE = "testvillage:all"
"""Name of that engine, so that registered environments can be made and replayed with it."""

register_retriever("testvillage", lambda location: village_retriever())
