"""Facts, the passages that state them, and the questions one can ask of them: what follows from what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.facts_corpus.names import name_key
from srpo_envs.search import Passage


@dataclass(frozen=True, kw_only=True)
class Entity:
    """Something that passages are about."""

    key: str
    """Unique; taken from the source, so that it survives a rebuild."""
    kind: str
    """Such as ``country`` or ``person``."""
    name: str
    """The name in passages and answers."""
    mention: str
    """The name as it stands inside a sentence: 'the Gambia', 'the genus Homarus'."""
    aliases: tuple[str, ...] = ()
    """Other names that count as right."""
    cluster: str
    """Entities of one cluster go to the same split; a city's cluster is its country."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """The object of a fact: an entity, or a text such as a year."""

    text: str
    """As it stands in the passage."""
    aliases: tuple[str, ...] = ()
    """Other spellings that count as right."""
    entity: str | None = None
    """Key of the entity it names."""
    number: float | None = None
    """For comparisons."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One statement, and where it stands."""

    subject: str
    """Key of the entity that the passage is about."""
    relation: str
    """A name of `scripts.facts_corpus.relations`."""
    value: Value
    """What it says."""
    passage_id: str
    """The passage that states it."""


class Graph:
    """Every entity, fact and passage."""

    def __init__(self) -> None:
        self.entities: dict[str, Entity] = {}
        self.passages: dict[str, Passage] = {}
        self._facts: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        self._inverse: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        self._by_name: dict[str, set[str]] = defaultdict(set)

    def add(self, entity: Entity) -> Entity:
        """Take in an entity.

        Raises:
            ValueError: its key is taken.
        """
        if entity.key in self.entities:
            raise ValueError(f"entity {entity.key!r} is there already")
        self.entities[entity.key] = entity
        for name in (entity.name, *entity.aliases):
            self._by_name[name_key(name)].add(entity.key)
        return entity

    def publish(self, subject: Entity, topic: str, text: str, facts: Mapping[str, Sequence[Value]]) -> None:
        """Take in a passage and the facts it states.

        Raises:
            ValueError: a fact is not in the text, or the subject has a passage on this topic.
        """
        passage_id = f"{subject.key}.{topic}"
        if passage_id in self.passages:
            raise ValueError(f"passage {passage_id!r} is there already")
        self.passages[passage_id] = Passage(id=passage_id, title=subject.name, text=text)
        for relation, values in facts.items():
            for value in values:
                if value.text not in text:
                    raise ValueError(f"passage {passage_id!r} does not say {value.text!r} ({relation}): {text!r}")
                fact = Fact(subject=subject.key, relation=relation, value=value, passage_id=passage_id)
                self._facts[subject.key, relation].append(fact)
                self._inverse[relation, _value_key(value)].append(fact)

    def facts(self, relation: str) -> list[Fact]:
        """Return the facts of a relation whose subject has only one such fact."""
        return [facts[0] for (_, name), facts in self._facts.items() if name == relation and len(facts) == 1]

    def about(self, subject: str, relation: str) -> list[Fact]:
        """Return every fact of this kind about a subject."""
        return self._facts.get((subject, relation), [])

    def the(self, subject: str, relation: str) -> Fact | None:
        """Return the one fact of this kind about a subject; None where there is none, or more than one."""
        facts = self.about(subject, relation)
        return facts[0] if len(facts) == 1 else None

    def with_value(self, relation: str, value: Value) -> list[Fact]:
        """Return every fact of a relation with this value; where there is one, the value identifies its subject."""
        return self._inverse[relation, _value_key(value)]

    def find(self, name: str, *kinds: str) -> Entity | None:
        """Return the one entity of these kinds with a name; None where there is none, or more than one."""
        found = [
            self.entities[key] for key in self._by_name.get(name_key(name), ()) if self.entities[key].kind in kinds
        ]
        return found[0] if len(found) == 1 else None

    def namesakes(self, entity: Entity) -> list[Entity]:
        """Return the entities that the entity's name names, itself among them."""
        return [self.entities[key] for key in sorted(self._by_name[name_key(entity.name)])]

    def is_ambiguous(self, entity: Entity) -> bool:
        """Say whether the entity's name also names something elsewhere, or another thing of its kind."""
        others = [other for other in self.namesakes(entity) if other.key != entity.key]
        return any(other.cluster != entity.cluster or other.kind == entity.kind for other in others)


def _value_key(value: Value) -> str:
    return value.entity or name_key(value.text)
