"""Multi-turn search (paper 5.2, B.2, E.1): a set of queries per turn, merged evidence, a verdict, one answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Sequence
from typing import Any, Literal

from srpo_envs.errors import BudgetExhaustedError
from srpo_envs.evidence import Evidence, Turn
from srpo_envs.parsing import STOP, parse_route, parse_search, parse_verdict
from srpo_envs.schedule import Ask, Reply, Role, Schedule
from srpo_envs.tasks.base import SearchTaskFamily, Task
from srpo_envs.workflows.search_env import SearchEnv

Variant = Literal["routed", "fixed"]
_VARIANTS: tuple[Variant, ...] = ("routed", "fixed")
AtLimit = Literal["answer", "truncate"]
_AT_LIMIT: tuple[AtLimit, ...] = ("answer", "truncate")


class Search(SearchEnv):
    """Searchers query one search engine together until the evidence suffices, then an answerer answers.

    Events of one turn (K = cardinality)::

        routed:  router K=1 -> STOP: answerer K=1 -> graded
                            -> 1, 3: searcher K=2 -> retrieval -> verifier K=1 -> next turn
        fixed:   searcher K=num_searchers -> retrieval -> verifier K=1 -> approve: answerer K=1 -> graded
                                                                       -> reject:  next turn

    Args:
        tasks: The task family.
        variant: Who ends the search and sets K. ``routed``: a router policy, which reads the evidence and the
            verifier's verdict on it. ``fixed``: the verifier ends it, and every searcher acts in every turn.
        num_searchers: Searchers available.
        at_limit: After the last turn the answerer gives an ``answer`` from what there is, or the episode is
            ``truncate``d with team reward 0.
        search: Passed to `SearchEnv`: ``retriever``, ``top_k``, ``max_turns``, ``max_evidence_chars``, ``query_cost``
            and its limits. A turn that the budget has no room for ends the search as the last turn does.
    """

    def __init__(
        self,
        tasks: SearchTaskFamily,
        *,
        variant: Variant = "routed",
        num_searchers: int = 3,
        at_limit: AtLimit = "answer",
        **search: Any,
    ) -> None:
        if variant not in _VARIANTS:
            raise ValueError(f"variant: expected one of {', '.join(_VARIANTS)}, got {variant!r}")
        if at_limit not in _AT_LIMIT:
            raise ValueError(f"at_limit: expected one of {', '.join(_AT_LIMIT)}, got {at_limit!r}")
        if num_searchers < 1:
            raise ValueError(f"num_searchers: expected at least 1, got {num_searchers}")
        self.variant = variant
        self.num_searchers = num_searchers
        self.at_limit = at_limit
        roles = [
            Role.of(tasks, "searcher", parse=parse_search, seats=num_searchers),
            Role.of(tasks, "verifier", parse=parse_verdict),
            Role.of(tasks, "answerer", parse=tasks.parse_answer),
        ]
        if variant == "routed":
            roles.insert(0, Role.of(tasks, "router", parse=functools.partial(parse_route, low=1, high=num_searchers)))
        super().__init__(tasks, roles, **search)

    def schedule(self, task: Task) -> Schedule:
        """Turns of search, then the answer."""
        evidence, stopped_by = Evidence(), "max_turns"
        while stopped_by == "max_turns" and len(evidence.turns) < self.turn_limit:
            self.begin_turn()
            try:
                turn = yield from self._turn(evidence)
            except BudgetExhaustedError as refusal:  # no room for this turn: it is as if the last one were over
                stopped_by = refusal.stopped_by
                break
            if turn is None:
                stopped_by = "router"
                continue
            evidence = evidence.plus(turn)
            if turn.is_approved and self.variant == "fixed":
                stopped_by = "verifier"
        if stopped_by not in ("router", "verifier") and self.at_limit == "truncate":
            return self.conclude(task, evidence, None, stopped_by)
        (final,) = yield self.ask_about("answerer", evidence)
        return self.conclude(task, evidence, final, stopped_by)

    def _turn(self, evidence: Evidence) -> Generator[Ask, list[Reply], Turn | None]:
        """One turn; None when the router stops. A malformed route activates nobody, and the turn is spent."""
        if self.variant == "fixed":
            return (yield from self._search(evidence, range(self.num_searchers)))
        (route,) = yield self.ask_about("router", evidence, num_searchers=str(self.num_searchers))
        if not route.is_valid:
            return Turn(malformed=(route,))
        if route.parsed == STOP:
            return None
        return (yield from self._search(evidence, [index - 1 for index in route.parsed]))

    def _search(self, evidence: Evidence, seats: Sequence[int]) -> Generator[Ask, list[Reply], Turn]:
        """One set of queries, what they bring, and the verdict; where nobody gave a query there is nothing to judge."""
        numbers = ", ".join(str(seat + 1) for seat in seats)
        replies = yield self.ask_about(
            "searcher",
            evidence,
            seats=seats,
            event_type="refinement" if evidence.num_queries else "searcher",
            state=f", {'searcher' if len(seats) == 1 else 'searchers'} {numbers}",
            active=numbers,
        )
        results = self.look_up([(reply.agent, reply.parsed) for reply in replies if reply.is_valid])
        turn = Turn(results=results, malformed=tuple(reply for reply in replies if not reply.is_valid))
        if not results:
            return turn
        (verdict,) = yield self.ask_about("verifier", evidence.plus(turn))
        if not verdict.is_valid:
            return dataclasses.replace(turn, malformed=(*turn.malformed, verdict))
        return dataclasses.replace(turn, verdict=verdict)
