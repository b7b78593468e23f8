"""What the readers of WordNet share."""

from __future__ import annotations

from scripts.facts_corpus.graph import Entity, Graph
from scripts.facts_corpus.names import spellings
from scripts.facts_corpus.sources import Synset


def instance_kinds(synsets: dict[str, Synset], synset: Synset) -> list[str]:
    """Return what a synset is an instance of, by the first word for it; empty for a class."""
    return [synsets[key].lemmas[0] for key in synset.related("@i")]


def wordnet_entity(graph: Graph, synset: Synset, kind: str, name: str, mention: str, cluster: str = "") -> Entity:
    """Take in a synset under one of its lemmas, with the others as aliases; ``{x}`` in its mention is the name."""
    key = f"wn-{synset.key}"
    return graph.add(
        Entity(
            key=key,
            kind=kind,
            name=name,
            mention=mention.format(x=name),
            aliases=spellings(name, [lemma for lemma in synset.lemmas if lemma != name]),
            cluster=cluster or key,
        )
    )
