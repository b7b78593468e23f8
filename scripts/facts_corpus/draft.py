"""One passage being written: sentences chosen among variants, and the facts they state."""

from __future__ import annotations

from scripts.facts_corpus.graph import Entity, Graph, Value
from scripts.facts_corpus.names import choose


class Draft:
    """Collects the sentences and facts of one passage.

    Args:
        graph: Where it is published.
        subject: What it is about.
        topic: Which of the subject's passages it is.
        called: The subject as it stands in sentences; its name where not given.

    Example:
        ``draft.say("The capital of {x} is {o}.", "{o} is the capital of {x}.", o="Lima")``
    """

    def __init__(self, graph: Graph, subject: Entity, topic: str, called: str = "") -> None:
        self._graph, self._subject, self._topic = graph, subject, topic
        self._called = called or subject.name
        self._sentences: list[str] = []
        self._facts: dict[str, list[Value]] = {}

    def say(self, *variants: str, **slots: str) -> None:
        """Add one of the variants, with ``{x}`` for the subject, its other slots filled, and a capital at the start."""
        key = f"{self._subject.key}.{self._topic}.{variants[0]}"
        text = choose(variants, key).format(x=self._called, **slots)
        self._sentences.append(text[0].upper() + text[1:])

    def note(self, relation: str, *values: Value | Entity) -> None:
        """Record that the passage states these facts about its subject."""
        self._facts[relation] = [_value(value) if isinstance(value, Entity) else value for value in values]

    def publish(self, min_words: int = 0) -> None:
        """Take the passage into the graph, unless it has fewer words than asked for.

        Raises:
            ValueError: a fact that was noted is not in the sentences.
        """
        text = " ".join(self._sentences)
        if len(text.split()) >= min_words:
            self._graph.publish(self._subject, self._topic, text, self._facts)


def _value(entity: Entity) -> Value:
    return Value(text=entity.name, aliases=entity.aliases, entity=entity.key)
