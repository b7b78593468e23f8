"""Which questions are kept: two splits that share no looked-up passage, and no template, name or answer in excess."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from scripts.facts_corpus.graph import Graph
from scripts.facts_corpus.names import name_key, stable_number
from scripts.facts_corpus.questions import Question, Questioner, chain_order

TEST_SHARE = 0.36
"""Share of the clusters (countries with all that lies in them, families of living things ...) kept for the test."""

TARGETS = {
    "train": {"single": 1000, "bridge2": 1400, "bridge3": 1100, "comparison": 500, "bridge_comparison": 600},
    "test": {"single": 300, "bridge2": 400, "bridge3": 300, "comparison": 150, "bridge_comparison": 200},
}
"""Number of questions of each group."""

CAPS = {
    "single": {"template": 0.05, "first": 0.05, "last": 0.05, "bridge": 1, "answer": 0.03},
    "bridge2": {"template": 0.05, "first": 0.15, "last": 0.12, "bridge": 0.04, "answer": 0.03},
    "bridge3": {"template": 0.08, "first": 0.15, "last": 0.12, "bridge": 0.08, "answer": 0.03},
    "comparison": {"template": 0.15, "first": 0.15, "last": 0.15, "bridge": 1, "answer": 0.04},
    "bridge_comparison": {"template": 0.10, "first": 0.10, "last": 0.20, "bridge": 0.06, "answer": 0.04},
}
"""Largest share of a group that may have one template, one first or last relation, one bridge entity or one answer."""


def split_clusters(graph: Graph) -> dict[str, str]:
    """Return the split of every cluster: by its name alone, but a country goes with its longest neighbour.

    So chains that cross a border can stay in one split.
    """
    group = {entity.cluster: entity.cluster for entity in graph.entities.values()}
    for fact in graph.facts("longest_border"):
        one, other = _root(group, fact.subject), _root(group, fact.value.entity or fact.subject)
        group[max(one, other)] = min(one, other)
    return {
        cluster: "test" if stable_number(f"split {_root(group, cluster)}") < TEST_SHARE * 2**64 else "train"
        for cluster in group
    }


def _root(group: dict[str, str], cluster: str) -> str:
    while group[cluster] != cluster:
        cluster = group[cluster]
    return cluster


def select_questions(graph: Graph) -> dict[str, list[Question]]:
    """Return the questions of each split, in an order that mixes the groups.

    Raises:
        ValueError: a group does not reach its number.
    """
    questioner = Questioner(graph, split_clusters(graph))
    chosen: dict[str, list[Question]] = {split: [] for split in TARGETS}
    for group, candidates in _groups(questioner):
        keepers = {split: _Keeper(targets[group], group) for split, targets in TARGETS.items()}
        for question in candidates:
            keepers[questioner.split(question)].offer(question)
            if all(keeper.is_full for keeper in keepers.values()):
                break
        for split, keeper in keepers.items():
            if not keeper.is_full:
                raise ValueError(f"{group} questions for {split}: expected {keeper.target}, got {len(keeper.kept)}")
            chosen[split] += keeper.kept
    return {split: sorted(questions, key=_order) for split, questions in chosen.items()}


def _groups(questioner: Questioner) -> Iterator[tuple[str, Iterable[Question]]]:
    for hops, group in ((1, "single"), (2, "bridge2"), (3, "bridge3")):
        chains = sorted(questioner.chains(hops), key=chain_order)
        yield group, filter(None, map(questioner.from_chain, chains))
    yield "comparison", sorted(questioner.comparisons(), key=_order)
    yield "bridge_comparison", sorted(questioner.bridge_comparisons(), key=_order)


def _order(question: Question) -> int:
    return stable_number(f"order {question.text}")


class _Keeper:
    """Takes questions until there are enough, refusing what there is too much of."""

    def __init__(self, target: int, group: str) -> None:
        self.target = target
        self.kept: list[Question] = []
        self._caps = {name: max(3, int(share * target)) for name, share in CAPS[group].items()}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._texts: set[str] = set()

    @property
    def is_full(self) -> bool:
        return len(self.kept) >= self.target

    def offer(self, question: Question) -> None:
        marks = [
            ("template", question.template),
            ("first", question.template.split(">")[0]),
            ("last", question.last_relation),
            ("answer", name_key(question.answers[0])),
            *(("bridge", key) for key in question.bridges),
        ]
        is_free = all(self._counts[mark] < self._caps[mark[0]] for mark in marks)
        if not self.is_full and is_free and question.text not in self._texts:
            self.kept.append(question)
            self._texts.add(question.text)
            self._counts.update(marks)
