"""What every search workflow shares: one retriever, evidence that grows by turns, and prompts that show it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from srpo_envs.core import SetEnv
from srpo_envs.evidence import Evidence, QueryResult, search_metrics
from srpo_envs.schedule import Ask, Outcome, Reply, Role
from srpo_envs.search import Passage, Retriever, open_retriever, search_all
from srpo_envs.tasks.base import SearchTaskFamily, Task


class SearchEnv(SetEnv):
    """A workflow over a search engine; subclasses give roles and a schedule.

    Args:
        tasks: The task family.
        roles: The jobs of the workflow.
        retriever: A `Retriever`, or its name for `open_retriever`; the family's own when omitted. A name is opened at
            the first search, so that a replay needs no search engine.
        top_k: Passages of each query.
        max_turns: Most turns of search.
        max_evidence_chars: Most characters of passages a prompt shows; what does not fit is left out in whole passages.
        query_cost: Taken off the team reward for each query, so that a team learns to search no more than pays.
        limits: Passed to `SetEnv`: ``max_events``, ``invalid_penalty``, ``max_new_tokens``, ``budget``.
    """

    def __init__(
        self,
        tasks: SearchTaskFamily,
        roles: Sequence[Role],
        *,
        retriever: str | Retriever | None = None,
        top_k: int = 3,
        max_turns: int = 3,
        max_evidence_chars: int = 12_000,
        query_cost: float = 0.0,
        **limits: Any,
    ) -> None:
        if top_k < 1 or max_turns < 1 or max_evidence_chars < 1:
            raise ValueError(
                f"expected top_k, max_turns and max_evidence_chars of at least 1, "
                f"got {top_k}, {max_turns} and {max_evidence_chars}"
            )
        if not (math.isfinite(query_cost) and query_cost >= 0):
            raise ValueError(f"query_cost: expected a finite number of at least 0, got {query_cost}")
        self.family = tasks
        self.query_cost = query_cost
        self.retriever = tasks.default_retriever if retriever is None else retriever
        self.top_k = top_k
        self.max_turns = max_turns
        self.max_evidence_chars = max_evidence_chars
        super().__init__(tasks, roles, **limits)

    @property
    def turn_limit(self) -> int:
        """Most turns of search of an episode: `max_turns`, or fewer where the budget says so."""
        return self.max_turns if self.budget.turns is None else min(self.max_turns, self.budget.turns)

    def ask_about(
        self,
        role: str,
        evidence: Evidence,
        *,
        seats: Sequence[int] = (0,),
        event_type: str | None = None,
        num_steps: int | None = None,
        state: str = "",
        **context: Any,
    ) -> Ask:
        """Announce a set whose members see the question, the step and everything found so far.

        Args:
            role: Who is asked.
            evidence: What is known; on the first turn the prompt has no history part.
            seats: The seats that answer.
            event_type: Kind of decision; the role's name when omitted.
            num_steps: Steps the prompt speaks of; `turn_limit` when omitted.
            state: What the audit adds to the description of the evidence.
            context: Texts for further placeholders.
        """
        history = self.family.render_evidence(evidence.shown(self.max_evidence_chars)) if evidence.turns else ""
        return self.ask(
            role,
            seats=seats,
            event_type=event_type,
            state=describe(evidence) + state,
            history=history,
            turn=str(self.turn + 1),
            max_turns=str(num_steps or self.turn_limit),
            **context,
        )

    def look_up(self, queries: Sequence[tuple[str, str]]) -> tuple[QueryResult, ...]:
        """Search for (agent, query) pairs in one request; each distinct query is one recorded tool call.

        The queries of a set are made together or not at all.

        Raises:
            BudgetExhaustedError: the budget has no room for all of them.
            RetrieverError: the search engine failed; the transition fails with it.
        """
        batch = _Batch(self.retriever, list(dict.fromkeys(query for _, query in queries)), self.top_k)
        self.require_tool_calls(len(batch.queries))
        found = {
            query: tuple(
                Passage(**fields) for fields in self.call_tool("search", batch.answer, query=query, top_k=self.top_k)
            )
            for query in batch.queries
        }
        return tuple(QueryResult(agent=agent, query=query, passages=found[query]) for agent, query in queries)

    def conclude(self, task: Task, evidence: Evidence, final: Reply | None, stopped_by: str) -> Outcome:
        """Grade the final answer, or truncate where there is none, and say how the search went."""
        metrics = search_metrics(evidence, task.golds, task.info)
        said = {"stopped_by": stopped_by, "metrics": metrics}
        outcome = self.truncate(**said) if final is None else self.outcome(final, **said)
        return dataclasses.replace(outcome, reward=outcome.reward - self.query_cost * evidence.num_queries)


class _Batch:
    """Queries of one set, searched together when the first answer is needed; a replay never needs one."""

    def __init__(self, retriever: str | Retriever, queries: list[str], top_k: int) -> None:
        self.queries = queries
        self._retriever = retriever
        self._top_k = top_k
        self._found: dict[str, list[Passage]] = {}

    def answer(self, query: str, top_k: int) -> list[dict[str, Any]]:
        """Return the passages of one query as JSON values."""
        if not self._found:
            retriever = open_retriever(self._retriever) if isinstance(self._retriever, str) else self._retriever
            self._found = dict(zip(self.queries, search_all(retriever, self.queries, top_k), strict=True))
        return [dataclasses.asdict(passage) for passage in self._found[query]]


def describe(evidence: Evidence) -> str:
    """Return the pre-action state in a few words, for the event audit."""
    if not evidence.num_queries:
        return "question, no evidence"
    num_passages = len(evidence.passages)
    verdict = evidence.turns[-1].verdict
    judged = (
        "" if verdict is None else ", judged " + ("sufficient" if evidence.turns[-1].is_approved else "insufficient")
    )
    return f"{num_passages} passage{'s' if num_passages != 1 else ''}{judged}"
