"""A village of invented people: a world to search in that suits a model of a hundred thousand parameters.

Everybody has a friend, a teacher, a boss and an age, and each of these facts is one passage. Questions need one query,
two queries one after the other (``Name the friend of the boss of Bako.``), two at once (``Name 1) the age of Bako and
2) the boss of Demi.``) or two at once twice. The world is the same for everyone, so that its corpus can ship
(`passages`, registered as ``bm25:village``); only the questions vary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from srpo_envs.evidence import ShownEvidence
from srpo_envs.grading import score_qa
from srpo_envs.parsing import parse_answer
from srpo_envs.prompting import load_prompt
from srpo_envs.schedule import Reply
from srpo_envs.search import Passage
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.generated import GeneratedTasks, Split, list_name, split_of

Kind = Literal["lookup", "chain", "pair", "pair_of_chains"]

NUM_PEOPLE = 200
PERSON_RELATIONS = ("friend", "teacher", "boss")
"""Relations whose value is another person."""
RELATIONS = (*PERSON_RELATIONS, "age")
"""Everything that is known of somebody."""

LEVELS: dict[int, tuple[Kind, ...]] = {
    1: ("lookup",),
    2: ("lookup", "chain"),
    3: ("lookup", "chain", "pair"),
    4: ("lookup", "chain", "pair", "pair_of_chains"),
}
"""Kinds of questions, by level; a level asks its kinds equally often."""

_SHAPES: dict[Kind, tuple[int, int]] = {"lookup": (1, 1), "chain": (2, 1), "pair": (1, 2), "pair_of_chains": (2, 2)}
"""Queries one after the other, and how many such chains at once."""

_WORLD_SEED = 7
_MAX_NEW_TOKENS = {"router": 8, "searcher": 20, "verifier": 6, "answerer": 48, "agent": 48}


class Village(GeneratedTasks):
    """Generated questions about the village, with train and test questions that never overlap.

    The split of a question is decided by a digest of its text, so no seed, level or size can move it.

    Args:
        level: Kinds of questions, see `LEVELS`.
        split: ``train`` or ``test``.
        size: Number of tasks; indices beyond the number of distinct questions repeat questions.
        seed: Another seed gives another list of questions about the same people.

    Raises:
        ValueError: an unknown level or split, or a size below 1.
    """

    family = "village"
    parse_answer = staticmethod(parse_answer)
    default_retriever = "bm25:village"

    def __init__(self, level: int = 4, split: Split = "train", size: int | None = None, seed: int = 0) -> None:
        super().__init__(LEVELS, level, split, size, seed)

    def task(self, index: int) -> Task:
        """Return task `index`, 0 <= index < num_tasks."""
        return _make_task(self.level, self.split, self.seed, index)

    def prompt(self, role: str) -> str:
        """Return the short template of a role."""
        return load_prompt("village", role)

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that fits a well-formed response."""
        return _MAX_NEW_TOKENS[role]

    def grade(self, task: Task, answer: Any) -> float:
        """Return 1.0 for the right name or number, else 0.0."""
        return float(score_qa(str(answer), task.golds)[0])

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Return nothing: what was found is told by `render_evidence`."""
        return ""

    def render_evidence(self, evidence: ShownEvidence) -> str:
        """Write one line for each passage, a word for each query that brought none or only known ones, and verdicts."""
        lines = []
        for turn in evidence.turns:
            for query in turn.queries:
                nothing_new = "repeated" if query.num_repeated else "nothing"
                lines += [passage.text for passage in query.passages] or [nothing_new]
            lines += ["malformed"] * len(turn.malformed)
            if turn.verdict is not None:
                lines.append(turn.verdict.parsed)
        return "".join("\n" + line for line in lines)


# --- the world ----------------------------------------------------------------------------------------------------


@functools.cache
def people() -> tuple[str, ...]:
    """Return everybody's name; invented, short, and different under any stemmer."""
    names = sorted({a + b + c + d for a in "BDFGKLMNPRTV" for b in "aeiou" for c in "bdfgklmnprtv" for d in "aiou"})
    rng = np.random.default_rng(_WORLD_SEED)
    return tuple(names[index] for index in sorted(rng.choice(len(names), NUM_PEOPLE, replace=False)))


@functools.cache
def facts() -> Mapping[str, Mapping[str, str]]:
    """Return what is known of everybody: relation to value, by name."""
    rng = np.random.default_rng([_WORLD_SEED, 1])
    names = people()
    known: dict[str, dict[str, str]] = {}
    for index, name in enumerate(names):
        others = [other for other in range(len(names)) if other != index]
        chosen = rng.choice(others, len(PERSON_RELATIONS), replace=False)
        known[name] = {relation: names[int(other)] for relation, other in zip(PERSON_RELATIONS, chosen, strict=True)}
        known[name]["age"] = str(int(rng.integers(10, 100)))
    return known


def passages() -> list[Passage]:
    """Return the corpus: one passage for each fact, titled with whom it is about."""
    return [
        Passage(id=f"{name}-{relation}", title=name, text=f"The {relation} of {name} is {value}.")
        for name, known in facts().items()
        for relation, value in known.items()
    ]


# --- questions ----------------------------------------------------------------------------------------------------


def write_query(relation: str, name: str) -> str:
    """Return the query that finds one fact."""
    return f"{relation} of {name}"


# A rollout group asks for its task once per member, each in an environment of its own.
@functools.lru_cache(maxsize=16_384)
def _make_task(level: int, split: Split, seed: int, index: int) -> Task:
    """Draw from the index's own stream until a question belongs to the split."""
    rng = np.random.default_rng([seed, level, split == "test", index])
    kind = LEVELS[level][index % len(LEVELS[level])]
    while True:
        question, gold, queries = _draw(kind, rng)
        if split_of(question) == split:
            info = {
                "kind": kind,
                "queries": queries,
                "gold_passage_ids": [_passage_id(q) for q in itertools.chain(*queries)],
            }
            return Task(f"{list_name(Village.family, level, split)}/{index}", question, gold, info)


def _passage_id(query: str) -> str:
    relation, _, name = query.split()
    return f"{name}-{relation}"


def _draw(kind: Kind, rng: np.random.Generator) -> tuple[str, str, list[list[str]]]:
    """Return a question, its answer, and the queries of each turn that find everything it needs."""
    num_hops, num_branches = _SHAPES[kind]
    while True:
        branches = [_draw_branch(num_hops, rng) for _ in range(num_branches)]
        turns = [list(queries) for queries in zip(*(branch.queries for branch in branches), strict=True)]
        if len({query for queries in turns for query in queries}) == num_hops * num_branches:
            break
    descriptions = [branch.description for branch in branches]
    if num_branches > 1:
        descriptions = [f"{number}) {description}" for number, description in enumerate(descriptions, start=1)]
    return f"Name {' and '.join(descriptions)}.", " and ".join(branch.value for branch in branches), turns


@dataclass(frozen=True, slots=True)
class _Branch:
    """One thing a question asks for: ``the age of the boss of Bako``, ``47``, and the queries that lead there."""

    description: str
    value: str
    queries: list[str]


def _draw_branch(num_hops: int, rng: np.random.Generator) -> _Branch:
    """Follow random relations from a random person; only the last may lead to an age."""
    value = description = people()[int(rng.integers(NUM_PEOPLE))]
    queries = []
    for hop in range(num_hops):
        choices = RELATIONS if hop == num_hops - 1 else PERSON_RELATIONS
        relation = choices[int(rng.integers(len(choices)))]
        queries.append(write_query(relation, value))
        value = facts()[value][relation]
        description = f"the {relation} of {description}"
    return _Branch(description, value, queries)
