"""What a team has found so far: queries and passages by turn, what of it is shown, and what it says about the search.

Retrieved passages are observations. They are never members of an active set: the cardinality of a search event counts
queries, however many passages those bring (SRPO, E.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srpo_envs.grading.qa_match import normalise_text
from srpo_envs.schedule import Reply
from srpo_envs.search import Passage


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryResult:
    """One query and what it brought."""

    agent: str
    """Who asked."""
    query: str
    """In which words."""
    passages: tuple[Passage, ...]
    """Best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of search: the results of its set, the outputs that were no query, and the verdict on it."""

    results: tuple[QueryResult, ...] = ()
    """In member order; empty when nobody searched."""
    malformed: tuple[Reply, ...] = ()
    """Outputs of this turn that their parsers refused, in the order they came."""
    verdict: Reply | None = None
    """The verifier's, when it was asked and kept to its format."""

    @property
    def is_approved(self) -> bool:
        """Whether the verifier found the evidence sufficient."""
        return self.verdict is not None and self.verdict.parsed == "approve"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownQuery:
    """One query as a prompt shows it."""

    agent: str
    """Who asked."""
    query: str
    """In which words."""
    passages: tuple[Passage, ...]
    """Shown under this query, best first."""
    num_repeated: int
    """Passages it also found that stand under another query."""
    num_left_out: int
    """Whole passages left out for length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownTurn:
    """One turn as a prompt shows it."""

    queries: tuple[ShownQuery, ...]
    """In member order."""
    malformed: tuple[Reply, ...]
    """As in `Turn`."""
    verdict: Reply | None
    """As in `Turn`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownEvidence:
    """Everything found so far, cut to a length; the task family puts it into words."""

    turns: tuple[ShownTurn, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The turns of one episode, oldest first."""

    turns: tuple[Turn, ...] = ()

    def plus(self, turn: Turn) -> Evidence:
        """Return the evidence after a further turn."""
        return Evidence((*self.turns, turn))

    @property
    def num_queries(self) -> int:
        """Queries that were searched."""
        return sum(len(turn.results) for turn in self.turns)

    @property
    def passages(self) -> list[Passage]:
        """Every passage found, each once: oldest turn first, and within a turn the best of every query first."""
        found: dict[str, Passage] = {}
        for turn in self.turns:
            for _, passage in _by_rank(turn.results):
                found.setdefault(passage.id, passage)
        return list(found.values())

    def shown(self, max_chars: int) -> ShownEvidence:
        """Choose what fits: whole passages, the best of every query before the second best of any.

        A passage that several queries found stands under the first of them. Among passages of one rank those of newer
        turns are chosen first; one that does not fit is left out whole and counted, and a shorter one may still fit.

        Args:
            max_chars: Most characters of passages, titles included.
        """
        homes = self._homes()
        chosen = self._choose(homes, max_chars)
        turns = []
        for turn_index, turn in enumerate(self.turns):
            queries = tuple(
                _show(result, [homes[p.id] == (turn_index, index) for p in result.passages], chosen)
                for index, result in enumerate(turn.results)
            )
            turns.append(ShownTurn(queries=queries, malformed=turn.malformed, verdict=turn.verdict))
        return ShownEvidence(turns=tuple(turns))

    def _homes(self) -> dict[str, tuple[int, int]]:
        """Turn and query each passage is shown under: the first that found it, best rank first within a turn."""
        homes: dict[str, tuple[int, int]] = {}
        for turn_index, turn in enumerate(self.turns):
            for index, passage in _by_rank(turn.results):
                homes.setdefault(passage.id, (turn_index, index))
        return homes

    def _choose(self, homes: Mapping[str, tuple[int, int]], max_chars: int) -> set[str]:
        ranked = [
            (rank, -turn_index, index, passage)
            for turn_index, turn in enumerate(self.turns)
            for index, result in enumerate(turn.results)
            for rank, passage in enumerate(result.passages)
            if homes[passage.id] == (turn_index, index)
        ]
        chosen: set[str] = set()
        for _, _, _, passage in sorted(ranked, key=lambda item: item[:3]):
            length = len(passage.title) + len(passage.text)
            if length <= max_chars:
                chosen.add(passage.id)
                max_chars -= length
        return chosen


def _by_rank(results: Sequence[QueryResult]) -> Iterator[tuple[int, Passage]]:
    """Merge the results of one set: (query, passage), the first of every query, then the second of every query ..."""
    for rank in range(max((len(result.passages) for result in results), default=0)):
        for index, result in enumerate(results):
            if rank < len(result.passages):
                yield index, result.passages[rank]


def _show(result: QueryResult, is_home: Sequence[bool], chosen: set[str]) -> ShownQuery:
    own = [passage for passage, home in zip(result.passages, is_home, strict=True) if home]
    kept = tuple(passage for passage in own if passage.id in chosen)
    return ShownQuery(
        agent=result.agent,
        query=result.query,
        passages=kept,
        num_repeated=len(result.passages) - len(own),
        num_left_out=len(own) - len(kept),
    )


# --- what it says about the search --------------------------------------------------------------------------------


def query_key(query: str) -> str:
    """Return the form in which two queries count as the same: case, punctuation, articles and blanks do not matter."""
    return normalise_text(query) or query.strip()


def search_metrics(evidence: Evidence, golds: Sequence[str], info: Mapping[str, Any]) -> dict[str, float]:
    """Return how well an episode searched; `docs/environments/search.md` explains each.

    Args:
        evidence: What was found.
        golds: Golden answers of the task.
        info: The task's ``info``; ``gold_passage_ids`` or ``gold_titles`` where the data names them.
    """
    in_set, across = _count_duplicates(evidence.turns)
    num_queries, passages = evidence.num_queries, evidence.passages
    values = {
        "num_turns": float(len(evidence.turns)),
        "num_queries": float(num_queries),
        "num_tool_calls": float(sum(len({result.query for result in turn.results}) for turn in evidence.turns)),
        "duplicate_queries_in_set": in_set / num_queries if num_queries else 0.0,
        "duplicate_queries_across_turns": across / num_queries if num_queries else 0.0,
        "evidence_support": float(supports(passages, golds)),
    }
    if wanted := info.get("gold_passage_ids"):
        values["gold_passage_recall"] = _share(wanted, [passage.id for passage in passages])
    elif wanted := info.get("gold_titles"):
        values["gold_passage_recall"] = _share(map(_title_key, wanted), [_title_key(p.title) for p in passages])
    return values


def supports(passages: Iterable[Passage], golds: Iterable[str]) -> bool:
    """Whether a golden answer stands, word for word after normalisation, in a retrieved passage."""
    wanted = [f" {normal} " for gold in golds if (normal := normalise_text(gold))]
    texts = (f" {normalise_text(f'{passage.title} {passage.text}')} " for passage in passages)
    return any(gold in text for text in texts for gold in wanted)


def _count_duplicates(turns: Sequence[Turn]) -> tuple[int, int]:
    """Queries that repeat one of the same set, and queries that repeat one of an earlier turn."""
    in_set = across = 0
    earlier: set[str] = set()
    for turn in turns:
        keys = [query_key(result.query) for result in turn.results]
        in_set += len(keys) - len(set(keys))
        across += sum(key in earlier for key in keys)
        earlier.update(keys)
    return in_set, across


def _share(wanted: Iterable[str], found: Iterable[str]) -> float:
    needed = set(wanted)
    return len(needed & set(found)) / len(needed)


def _title_key(title: str) -> str:
    return " ".join(title.split()).casefold()
