"""Questions that follow from the facts: chains of lookups, and comparisons of two.

Each has one right answer in the corpus, whichever way it is reached: names that mean two things, relations with two
values and descriptions that fit two subjects are passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from scripts.facts_corpus.graph import Entity, Fact, Graph
from scripts.facts_corpus.names import choose, contains_name, name_key, stable_number
from scripts.facts_corpus.relations import COMPARISON_QUERIES, COMPARISONS, RELATIONS, Comparison

STOP_WORDS = {"a", "an", "and", "are", "as", "at", "be", "by", "for", "if", "in", "is", "it", "no", "of", "on", "to"}
"""Names and codes, such as '.to' and 'As', that search engines drop as words without content."""

MAX_WORDS = 60
"""Longest question."""

PARTNERS = 6
"""Number of others that each subject is compared with."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One lookup: a fact, walked from its subject to its value or back."""

    fact: Fact
    """What the passage states."""
    is_inverse: bool = False
    """From the value to the subject."""

    @property
    def label(self) -> str:
        """The relation, with a mark where it is walked backwards."""
        return f"~{self.fact.relation}" if self.is_inverse else self.fact.relation

    @property
    def target(self) -> str | None:
        """Key of the entity it leads to; None where it leads to a text."""
        return self.fact.subject if self.is_inverse else self.fact.value.entity


Chain = tuple[Step, ...]
"""Lookups, each from where the one before led to."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with all that a benchmark needs."""

    text: str
    """Its words."""
    answers: tuple[str, ...]
    """The answer as the passage has it, then other spellings."""
    kind: str
    """``single``, ``bridge``, ``comparison`` or ``bridge_comparison``."""
    template: str
    """The relations it walks, ``~`` before those walked backwards: questions with one template differ in names only."""
    gold: tuple[tuple[str, ...], ...]
    """Ids of the passages to find, turn by turn."""
    queries: tuple[tuple[str, ...], ...]
    """Searches that find them, turn by turn."""
    subjects: tuple[str, ...]
    """Keys of the entities whose passages come first."""
    bridges: tuple[str, ...]
    """Keys of the entities that the question does not name but needs."""

    @property
    def hops(self) -> int:
        """Number of turns."""
        return len(self.queries)

    @property
    def last_relation(self) -> str:
        """What is asked for in the end."""
        return self.template.split(">")[-1]


class Questioner:
    """Makes questions from the facts of a graph.

    Args:
        graph: Facts and passages.
        split_of: Split of each cluster. A question's passages all belong to one split.
    """

    def __init__(self, graph: Graph, split_of: dict[str, str]) -> None:
        self._graph, self._split_of = graph, split_of
        self._starts = list(self._start_steps())

    def chains(self, hops: int) -> Iterator[Chain]:
        """Yield every chain of so many lookups whose passages are all of one split."""
        chains: Iterable[Chain] = ((step,) for step in self._starts)
        for _ in range(hops - 1):
            chains = (longer for chain in chains for longer in self._continued(chain))
        yield from chains

    def split(self, question: Question) -> str:
        """Return the split of a question."""
        return self._split_of[self._graph.entities[(*question.subjects, *question.bridges)[0]].cluster]

    def from_chain(self, chain: Chain) -> Question | None:
        """Word a chain as a question; None where its words or an earlier passage give away what is to be found."""
        key = _chain_key(chain)
        answers = self._answers(chain[-1])
        bridges = tuple(step.target for step in chain[:-1] if step.target)
        text = self._final_text(chain, key)
        earlier = [self._graph.passages[step.fact.passage_id].text for step in chain[:-1]]
        if self._is_given_away(answers, text, earlier) or self._is_named(bridges, text):
            return None
        return Question(
            text=text,
            answers=answers,
            kind="single" if len(chain) == 1 else "bridge",
            template=">".join(step.label for step in chain),
            gold=tuple((step.fact.passage_id,) for step in chain),
            queries=tuple((self._query(step),) for step in chain),
            subjects=() if chain[0].is_inverse and len(chain) > 1 else (chain[0].fact.subject,),
            bridges=bridges,
        )

    def comparisons(self) -> Iterator[Question]:
        """Yield questions that compare two entities they name."""
        for comparison in COMPARISONS:
            facts = [fact for fact in self._graph.facts(comparison.relation) if self._is_clear(fact.subject)]
            for first, second in self._pairs(comparison, facts):
                mentions = [self._graph.entities[fact.subject].mention for fact in (first, second)]
                yield self._compared(comparison, (first, second), mentions, ())

    def bridge_comparisons(self) -> Iterator[Question]:
        """Yield questions that compare two entities they only describe."""
        leads: dict[str, list[Step]] = defaultdict(list)
        for step in self._starts:
            if step.target:
                leads[step.target].append(step)
        for comparison in COMPARISONS:
            facts = [fact for fact in self._graph.facts(comparison.relation) if fact.subject in leads]
            for pair in self._pairs(comparison, facts):
                key = ",".join(fact.subject for fact in pair) + comparison.relation
                steps = [self._lead(leads[fact.subject], key + fact.subject, fact) for fact in pair]
                if steps[0] and steps[1] and steps[0].fact.relation != comparison.relation:
                    found = [step for step in steps if step]
                    question = self._compared(comparison, pair, [self._phrase(step, key) for step in found], found)
                    if not self._is_named(question.bridges, question.text):
                        yield question

    def _start_steps(self) -> Iterator[Step]:
        for name, relation in RELATIONS.items():
            for fact in self._graph.facts(name):
                if self._graph.entities[fact.subject].kind != relation.subject_kind or not self._is_whole(fact):
                    continue
                if self._is_clear(fact.subject):
                    yield Step(fact=fact)
                words = set(name_key(fact.value.text).split())
                if relation.inverse_ask and words - STOP_WORDS and len(self._graph.with_value(name, fact.value)) == 1:
                    yield Step(fact=fact, is_inverse=True)

    def _is_whole(self, fact: Fact) -> bool:
        """Say whether the entity a fact leads to, if any, is of the kind its relation promises."""
        entity = self._graph.entities.get(fact.value.entity or "")
        kind = RELATIONS[fact.relation].value_kind
        return not kind or entity is None or entity.kind == kind

    def _is_clear(self, key: str) -> bool:
        return not self._graph.is_ambiguous(self._graph.entities[key])

    def _continued(self, chain: Chain) -> Iterator[Chain]:
        target = chain[-1].target
        if target is None or not self._is_clear(target):
            return
        entity = self._graph.entities[target]
        used = {step.fact.relation for step in chain}
        places = {step.fact.passage_id for step in chain}
        for name, relation in RELATIONS.items():
            fact = self._graph.the(target, name) if relation.subject_kind == entity.kind else None
            if fact and name not in used and fact.passage_id not in places and self._is_whole(fact):
                longer = (*chain, Step(fact=fact))
                seen = {step.fact.subject for step in chain}
                if fact.value.entity not in seen and self._is_one_split(step.fact.subject for step in longer):
                    yield longer

    def _is_one_split(self, keys: Iterable[str]) -> bool:
        return len({self._split_of[self._graph.entities[key].cluster] for key in keys}) == 1

    def _final_text(self, chain: Chain, key: str) -> str:
        """Word the last lookup as a question about a phrase that stands for the ones before."""
        last = chain[-1]
        relation = RELATIONS[last.fact.relation]
        if last.is_inverse:
            return choose(relation.inverse_ask, key).format(x=last.fact.value.text)
        inner = self._graph.entities[last.fact.subject].mention
        for number, step in enumerate(chain[:-1]):
            inner = self._phrase(step, f"{key}{number}", inner if number else None)
        return choose(relation.ask, key).format(x=inner)

    def _phrase(self, step: Step, key: str, inner: str | None = None) -> str:
        relation = RELATIONS[step.fact.relation]
        if step.is_inverse:
            return choose(relation.inverse_phrase, key).format(x=step.fact.value.text)
        subject = inner or self._graph.entities[step.fact.subject].mention
        return choose(relation.phrase, key).format(x=subject)

    def _query(self, step: Step) -> str:
        relation = RELATIONS[step.fact.relation]
        if step.is_inverse:
            return relation.inverse_query.format(x=step.fact.value.text)
        return relation.query.format(x=self._graph.entities[step.fact.subject].name)

    def _answers(self, step: Step) -> tuple[str, ...]:
        if step.is_inverse:
            return _names(self._graph.entities[step.fact.subject])
        return (step.fact.value.text, *step.fact.value.aliases)

    def _is_given_away(self, answers: Sequence[str], text: str, earlier: Sequence[str]) -> bool:
        """Say whether an answer stands in the question, or in a passage that has to be found before the last."""
        long = [answer for answer in answers if len(answer) > 2]
        in_text = any(contains_name(text, answer) for answer in long or answers)
        in_passage = any(contains_name(passage, answer) for passage in earlier for answer in long or answers)
        return in_text or in_passage or len(text.split()) > MAX_WORDS

    def _is_named(self, keys: Iterable[str], text: str) -> bool:
        """Say whether a text names one of the entities."""
        names = [name for key in keys for name in _names(self._graph.entities[key])]
        return any(contains_name(text, name) for name in names if len(name) > 2)

    def _pairs(self, comparison: Comparison, facts: list[Fact]) -> Iterator[tuple[Fact, Fact]]:
        """Yield pairs of one kind and split whose numbers differ enough, each subject with a few partners."""
        groups: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        for fact in sorted(facts, key=lambda fact: stable_number(f"pair {comparison.relation} {fact.subject}")):
            entity = self._graph.entities[fact.subject]
            if entity.kind != "territory":
                groups[entity.kind, self._split_of[entity.cluster]].append(fact)
        for group in groups.values():
            for start in range(len(group)):
                for first, second in combinations(group[start : start + PARTNERS], 2):
                    if first is group[start] and _is_apart(first, second, comparison.margin):
                        yield first, second

    def _lead(self, steps: list[Step], key: str, fact: Fact) -> Step | None:
        """Return one of the lookups that lead to a subject, from another passage of the same split."""
        fitting = [
            step
            for step in steps
            if step.fact.passage_id != fact.passage_id and self._is_one_split((step.fact.subject, fact.subject))
        ]
        labels = sorted({step.label for step in fitting})
        if not labels or not self._is_clear(fact.subject):
            return None
        label = choose(labels, key)
        chosen = [step for step in fitting if step.label == label]
        return chosen[stable_number(key) % len(chosen)]

    def _compared(
        self, comparison: Comparison, pair: tuple[Fact, Fact], phrases: list[str], leads: Sequence[Step]
    ) -> Question:
        key = f"{comparison.relation} {pair[0].subject} {pair[1].subject}"
        is_larger = stable_number(f"direction {key}") % 2 == 0
        wording = choose(comparison.larger if is_larger else comparison.smaller, key)
        best = max(pair, key=_number) if is_larger else min(pair, key=_number)
        query = COMPARISON_QUERIES.get(comparison.relation) or RELATIONS[comparison.relation].query
        last = tuple(query.format(x=self._graph.entities[fact.subject].name) for fact in pair)
        gold = tuple(fact.passage_id for fact in pair)
        subjects = tuple(fact.subject for fact in pair)
        head = "|".join(sorted(step.label for step in leads))
        return Question(
            text=wording.format(x=phrases[0], y=phrases[1]),
            answers=_names(self._graph.entities[best.subject]),
            kind="bridge_comparison" if leads else "comparison",
            template=f"{head}>{comparison.relation}?" if leads else f"{comparison.relation}?",
            gold=(tuple(step.fact.passage_id for step in leads), gold) if leads else (gold,),
            queries=(tuple(self._query(step) for step in leads), last) if leads else (last,),
            subjects=tuple(step.fact.subject for step in leads if not step.is_inverse) if leads else subjects,
            bridges=subjects if leads else (),
        )


def _number(fact: Fact) -> float:
    return fact.value.number or 0.0


def _is_apart(first: Fact, second: Fact, margin: float) -> bool:
    one, other = _number(first), _number(second)
    return one != other and abs(one - other) >= margin * max(abs(one), abs(other))


def _names(entity: Entity) -> tuple[str, ...]:
    return (entity.name, *entity.aliases)


def _chain_key(chain: Chain) -> str:
    return " ".join(f"{step.label} {step.fact.subject}" for step in chain)


def chain_order(chain: Chain) -> int:
    """Return where a chain stands in the order in which questions are drawn."""
    return stable_number(f"order {_chain_key(chain)}")
