"""Math solver-verifier (paper 5.1, B.1, E.2): parallel drafts, a verdict, revisions, an aggregated answer."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import Any, Literal

from srpo_envs.core import SetEnv
from srpo_envs.errors import BudgetExhaustedError
from srpo_envs.parsing import parse_route, parse_verdict
from srpo_envs.schedule import Ask, Reply, Role, Schedule
from srpo_envs.tasks.base import Task, TaskFamily

Variant = Literal["fixed", "mixed", "routed"]
_VARIANTS: tuple[Variant, ...] = ("fixed", "mixed", "routed")


class SolverVerifier(SetEnv):
    """K solvers draft from one pre-action state, a verifier judges, rejected drafts are revised, an aggregator answers.

    Events of one episode (K = cardinality)::

        [router K=1] -> solver K -> verifier K=1 -> approve: aggregator K=1 -> graded
                                                 -> reject:  revision (see variant) -> verifier ...

    Args:
        tasks: The task family.
        variant: Who answers a rejection. ``mixed``: one solver revises (K varies within the episode). ``fixed``: all
            solvers revise together (K is constant over draft events). ``routed``: a router policy picks the solvers of
            every draft event, so K is decided by the team itself.
        num_solvers: Solvers available; K of a draft event in the fixed variant.
        max_rounds: Most verdicts of an episode. The aggregator answers after the last one, approved or not; an episode
            that has no draft by then (a router that never chose anybody) is truncated.
        limits: Passed to `SetEnv`: ``max_events``, ``invalid_penalty``, ``max_new_tokens``, ``budget``. Where the
            budget has no room for another round, the aggregator answers.
    """

    def __init__(
        self,
        tasks: TaskFamily,
        *,
        variant: Variant = "mixed",
        num_solvers: int = 3,
        max_rounds: int = 2,
        **limits: Any,
    ) -> None:
        if variant not in _VARIANTS:
            raise ValueError(f"variant: expected one of {', '.join(_VARIANTS)}, got {variant!r}")
        if num_solvers < 1 or max_rounds < 1:
            raise ValueError(f"expected num_solvers >= 1 and max_rounds >= 1, got {num_solvers} and {max_rounds}")
        self.variant = variant
        self.num_solvers = num_solvers
        self.max_rounds = max_rounds
        answer = tasks.parse_answer
        roles = [
            Role.of(tasks, "solver", parse=answer, seats=num_solvers),
            Role.of(tasks, "verifier", parse=parse_verdict),
            Role.of(tasks, "aggregator", parse=answer),
        ]
        if variant == "routed":
            route = functools.partial(parse_route, low=1, high=num_solvers, allow_stop=False)
            roles.insert(0, Role.of(tasks, "router", parse=route))
        super().__init__(tasks, roles, **limits)

    def schedule(self, task: Task) -> Schedule:
        """Rounds of drafting and judging, then the aggregated answer."""
        drafts: list[Reply] = []
        try:
            stopped_by = yield from self._rounds(drafts)
        except BudgetExhaustedError as refusal:  # no room for another round: the answer comes from what there is
            stopped_by = refusal.stopped_by
        is_approved = stopped_by == "approval"
        metrics = {"num_drafts": len(drafts), "num_malformed_drafts": _num_malformed(drafts), "approved": is_approved}
        if not drafts:
            return self.truncate(stopped_by=stopped_by, metrics=metrics)
        (final,) = yield self.ask(
            "aggregator", state="approved drafts" if is_approved else "unapproved drafts", context=self.context(drafts)
        )
        return self.outcome(final, stopped_by=stopped_by, metrics=metrics)

    def _rounds(self, drafts: list[Reply]) -> Generator[Ask, list[Reply], str]:
        """Add to the drafts until they are approved or the rounds are over; says which of both."""
        verdict: Reply | None = None
        for _ in range(self.max_rounds):
            self.begin_turn()
            # A malformed verdict judged nothing: the same drafts are judged again and the round is spent.
            if verdict is None or verdict.is_valid:
                revised = yield from self._draft(drafts, verdict)
                if not revised:  # the router's choice was malformed: nobody drafts and the round is spent
                    continue
                drafts += revised
            (verdict,) = yield self.ask("verifier", state=_describe(drafts), context=self.context(drafts))
            if verdict.parsed == "approve":
                return "approval"
        return "max_rounds"

    def _draft(self, drafts: list[Reply], verdict: Reply | None) -> Generator[Ask, list[Reply], list[Reply]]:
        """One draft event; nobody is activated when the router's choice is malformed."""
        context = self.context(drafts, verdict)
        state = "rejected drafts" if drafts else "question only"
        seats: Sequence[int] = range(self.num_solvers)
        if self.variant == "routed":
            (route,) = yield self.ask("router", state=state, context=context, num_solvers=str(self.num_solvers))
            if not route.is_valid:
                return []
            seats = [index - 1 for index in route.parsed]
            state += ", solvers " + ", ".join(map(str, route.parsed)) + " chosen"
        elif self.variant == "mixed" and drafts:
            seats = range(1)
        return (
            yield self.ask(
                "solver", seats=seats, event_type="revision" if drafts else "solver", state=state, context=context
            )
        )


def _num_malformed(drafts: list[Reply]) -> int:
    return sum(not draft.is_valid for draft in drafts)


def _describe(drafts: list[Reply]) -> str:
    return "one draft" if len(drafts) == 1 else f"{len(drafts)} competing drafts"
