"""Experts of the search workflows over the village: right and spoiled responses.

A question has one branch or two (kinds ``pair`` and ``pair_of_chains``), each a chain of one or two facts. Searchers
share branches by their seats: odd ones work on the first, even ones on the second, and on the other where theirs is
done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from srpo_envs.core import SetEnv
from srpo_envs.parsing import STOP
from srpo_envs.records import Event, Member
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.village import RELATIONS, Village, facts, people, write_query
from srpo_envs.workflows.search import Search
from srpo_envs.workflows.search_agent import SearchAgent
from srpo_train.tiny.experts import Cast, Expert, Habits, write_route, write_verdict

Fact = tuple[str, str]
"""Relation and person; its value is looked up or found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchHabits(Habits):
    """How often an expert of the search team errs.

    Example:
        ``SearchHabits(random_route=0.5)`` stops without need, or activates too many or the wrong searchers.
    """

    careless_query: float = 0.0
    """A searcher does not think, and asks for any relation of anybody who is mentioned."""
    wrong_relation: float = 0.0
    """A searcher thinks, then asks for any relation of the right person."""
    careless_answer: float = 0.0
    """An answerer does not think, and names anybody who is mentioned, one for each thing asked."""
    random_verdict: float = 0.0
    """A verifier decides by the toss of a coin."""
    random_route: float = 0.0
    """A router stops, or names any set of searchers, each as often."""
    random_step: float = 0.0
    """A single agent searches or answers by the toss of a coin."""


CLEAN = SearchHabits()
"""No mistakes."""


class SearchCast(Cast[SearchHabits]):
    """A router, searchers, a verifier, an answerer and a single agent, who know what has to be found."""

    def __init__(self, env: SetEnv, task: Task) -> None:
        super().__init__(env, task)
        self._branches = [[_fact(query) for query in chain] for chain in zip(*task.info["queries"], strict=True)]
        self._found: list[Fact] = []
        self._num_turns = 0

    def parts(self) -> Mapping[str, Expert[SearchHabits]]:
        """Return the expert of each role."""
        return {
            "router": self._route,
            "searcher": self._search,
            "verifier": self._verify,
            "answerer": self._answer,
            "agent": self._step,
        }

    def watch(self, event: Event) -> None:
        """Remember the facts that were found."""
        self._num_turns = event.turn + 1
        for call in event.tool_calls:
            if call.name == "search":
                self._found += [_fact(passage["id"]) for passage in call.result]

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> list[int]:
        """Branches that lack a fact."""
        return [index for index, branch in enumerate(self._branches) if not set(branch) <= set(self._found)]

    def _choose_branch(self, seat: int) -> int:
        own = seat % len(self._branches)
        return own if own in self._open or not self._open else self._open[0]

    def _number(self, index: int) -> str:
        """Name a branch as the question does."""
        return f" {index + 1})" if len(self._branches) > 1 else ""

    def _recall(self, fact: Fact) -> str:
        """Say what is known of a fact."""
        return f" {write_query(*fact)} is {_value(fact) if fact in self._found else 'unknown'}"

    def _anybody(self, rng: np.random.Generator) -> str:
        """Choose one of the people whom a prompt names, in the question or in what was found."""
        asked = [branch[0][1] for branch in self._branches]
        told = [name for relation, person in self._found for name in (person, _value((relation, person)))]
        mentioned = list(dict.fromkeys(name for name in (*asked, *told) if not name.isdigit()))
        return mentioned[int(rng.integers(len(mentioned)))]

    # --- one expert per role ------------------------------------------------------------------------------------------

    def _route(self, member: Member, habits: SearchHabits, rng: np.random.Generator) -> str:
        num_seats = self.env.roles["searcher"].seats
        seats: Sequence[int] = sorted({index % num_seats for index in self._open})
        if rng.random() < habits.random_route:
            chosen = int(rng.integers(2**num_seats))
            seats = [seat for seat in range(num_seats) if chosen >> seat & 1]
        return write_route(seat + 1 for seat in seats) if seats else f"<route>{STOP}</route>"

    def _search(self, member: Member, habits: SearchHabits, rng: np.random.Generator) -> str:
        if rng.random() < habits.careless_query:
            return _write_search("", (_any_relation(rng), self._anybody(rng)))
        index = self._choose_branch(int(member.agent.rpartition("_")[2]))
        branch = self._branches[index]
        wanted = next((fact for fact in branch if fact not in self._found), branch[-1])
        thought = self._number(index) + self._recall(branch[0])
        if rng.random() < habits.wrong_relation:
            wanted = (_any_relation(rng), wanted[1])
        return _write_search(thought, wanted)

    def _verify(self, member: Member, habits: SearchHabits, rng: np.random.Generator) -> str:
        is_approved = not self._open
        if rng.random() < habits.random_verdict:
            is_approved = rng.random() < 0.5
        return write_verdict(is_approved)

    def _answer(self, member: Member, habits: SearchHabits, rng: np.random.Generator) -> str:
        if rng.random() < habits.careless_answer:
            return _write_answer("", " and ".join(self._anybody(rng) for _ in self._branches))
        thought = ""
        for index, branch in enumerate(self._branches):
            num_known = next((hop for hop, fact in enumerate(branch) if fact not in self._found), len(branch))
            thought += self._number(index) + "".join(map(self._recall, branch[: num_known + 1]))
        return _write_answer(thought, "unknown" if self._open else self.task.gold)

    def _step(self, member: Member, habits: SearchHabits, rng: np.random.Generator) -> str:
        assert isinstance(self.env, SearchAgent)
        must_answer = self._num_turns == self.env.max_turns
        will_search = bool(self._open)
        if rng.random() < habits.random_step:
            will_search = rng.random() < 0.5
        return (self._search if will_search and not must_answer else self._answer)(member, habits, rng)


def _fact(text: str) -> Fact:
    """Read a query, ``boss of Bako``, or the id of a passage, ``Bako-boss``."""
    name, hyphen, relation = text.partition("-")
    if hyphen:
        return relation, name
    relation, _, name = text.split()
    return relation, name


def _value(fact: Fact) -> str:
    relation, name = fact
    return facts()[name][relation]


def _any_relation(rng: np.random.Generator) -> str:
    return RELATIONS[int(rng.integers(len(RELATIONS)))]


def _write_answer(thought: str, answer: str) -> str:
    return f"<think>{thought}</think><answer> {answer}</answer>"


def _write_search(thought: str, wanted: Fact) -> str:
    return f"<think>{thought}</think><search> {write_query(*wanted)}</search>"


# --- where the examples come from ---------------------------------------------------------------------------------


def sample_environment(rng: np.random.Generator, level: int) -> SetEnv:
    """Return a random workflow over training questions of a level: any variant, two searchers."""
    tasks = Village(level=level, split="train")
    variant = rng.choice(["routed", "fixed", "agent"], p=[0.7, 0.15, 0.15])
    if variant == "agent":
        return SearchAgent(tasks, top_k=1, max_turns=int(rng.integers(2, 5)))
    return Search(tasks, variant=variant, num_searchers=2, top_k=1, max_turns=int(rng.integers(2, 4)))


def with_random_company(habits: SearchHabits, rng: np.random.Generator) -> SearchHabits:
    """Return `habits` with other rates of bad decisions, so that a policy meets evidence of every quality."""
    return dataclasses.replace(
        habits,
        careless_query=float(rng.uniform(0.0, 0.5)),
        random_route=float(rng.uniform(0.0, 0.5)),
        random_verdict=float(rng.uniform(0.0, 0.5)),
        random_step=float(rng.uniform(0.0, 0.3)),
        malformed=0.02,
    )


def names_and_relations() -> tuple[str, ...]:
    """Return the words of this world, each with the blank before it."""
    return tuple(f" {word}" for word in (*people(), *RELATIONS))
