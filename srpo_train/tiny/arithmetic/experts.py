r"""Experts of the solver-verifier and single-agent workflows over arithmetic: right and spoiled responses."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from srpo_envs.core import SetEnv
from srpo_envs.records import Event, Member
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.tasks.base import Task
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.tiny.arithmetic.chains import ChainHabits, write_boxed, write_solution
from srpo_train.tiny.experts import Cast, Expert, write_route, write_verdict

SEATS = (1, 2, 3, 4, 5)
"""Numbers of solvers the examples cover."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamHabits(ChainHabits):
    """How often an expert of the arithmetic team errs."""

    random_verdict: float = 0.0
    """A verifier decides by the toss of a coin."""
    random_choice: float = 0.0
    """An aggregator boxes a random draft's answer."""
    random_route: float = 0.0
    """A router picks a random number of solvers; they are all alike, so it names the first ones."""


CLEAN = TeamHabits()
"""No mistakes."""


class ArithmeticCast(Cast[TeamHabits]):
    """Solvers, a verifier, an aggregator and a router, who know the right answer and remember every draft."""

    def __init__(self, env: SetEnv, task: Task) -> None:
        super().__init__(env, task)
        self._drafts: list[str | None] = []  # one answer per draft, None for a malformed one

    def parts(self) -> Mapping[str, Expert[TeamHabits]]:
        """Return the expert of each role."""
        return {
            "solver": self._solve,
            "verifier": self._verify,
            "aggregator": self._aggregate,
            "router": self._route,
        }

    def watch(self, event: Event) -> None:
        """Remember the drafts of an event."""
        self._drafts += [member.parsed for member in event.members if member.role == "solver"]

    @property
    def _favourite(self) -> str:
        """The most frequent draft answer; the right one wins a tie, so that the best use of the drafts is taught."""
        gold: str = self.task.gold
        counts = Counter(draft for draft in self._drafts if draft is not None)
        if not counts:
            return gold
        best = max(counts.values())
        leaders = [answer for answer, count in counts.items() if count == best]
        return gold if gold in leaders else leaders[0]

    def _solve(self, member: Member, habits: TeamHabits, rng: np.random.Generator) -> str:
        return write_solution(self.task.info["start"], self.task.info["steps"], habits, rng)

    def _verify(self, member: Member, habits: TeamHabits, rng: np.random.Generator) -> str:
        is_approved = self._favourite == self.task.gold and any(draft is not None for draft in self._drafts)
        if rng.random() < habits.random_verdict:
            is_approved = rng.random() < 0.5
        return write_verdict(is_approved)

    def _aggregate(self, member: Member, habits: TeamHabits, rng: np.random.Generator) -> str:
        readable = [draft for draft in self._drafts if draft is not None]
        if readable and rng.random() < habits.random_choice:
            return write_boxed(readable[int(rng.integers(len(readable)))])
        return write_boxed(self._favourite)

    def _route(self, member: Member, habits: TeamHabits, rng: np.random.Generator) -> str:
        num_seats = self.env.roles["solver"].seats
        size = 1 if self._drafts else num_seats  # everybody drafts first; after a rejection one solver revises
        if rng.random() < habits.random_route:
            size = int(rng.integers(1, num_seats + 1))
        return write_route(range(1, size + 1))


# --- where the examples come from ---------------------------------------------------------------------------------


def sample_environment(rng: np.random.Generator, level: int, *, seed: int = 0) -> SetEnv:
    """Return a random workflow over training tasks of a level: any variant, one to five solvers, one or two rounds."""
    tasks = Arithmetic(level=level, split="train", seed=seed)
    variant = rng.choice(["single", "fixed", "mixed", "routed"], p=[0.1, 0.2, 0.4, 0.3])
    if variant == "single":
        return SingleAgent(tasks)
    return SolverVerifier(
        tasks, variant=variant, num_solvers=int(rng.choice(SEATS)), max_rounds=int(rng.integers(1, 3))
    )


def with_random_company(habits: TeamHabits, rng: np.random.Generator) -> TeamHabits:
    """Return `habits` with a random share of wrong steps, so that a policy meets drafts of every quality."""
    return dataclasses.replace(
        habits, wrong_step=float(rng.uniform(0.0, 0.5)), random_verdict=float(rng.uniform(0.2, 1.0)), malformed=0.02
    )
