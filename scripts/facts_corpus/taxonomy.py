"""Animals and plants of WordNet: species, genus, family, order, class."""

from __future__ import annotations

import re

from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.graph import Entity, Graph, Value
from scripts.facts_corpus.names import spellings, stable_number, with_article
from scripts.facts_corpus.sources import Synset

RANKS = ("class", "order", "family", "genus")
"""From the widest to the narrowest; a species stands below a genus."""

KINDS = {"05": "animals or microbes", "20": "plants or fungi"}
"""What the two lexicographer files hold."""

SPECIES_KEPT = 0.55
"""Share of the species taken, to keep the corpus small."""


def add_taxonomy(graph: Graph, synsets: dict[str, Synset]) -> None:
    """Take in classes, orders, families and genera, then a sample of the species."""
    living = [synset for synset in synsets.values() if synset.category in KINDS]
    for rank in RANKS:
        for synset in living:
            if _rank(synset) == rank:
                _add_group(graph, synsets, synset, rank)
    for synset in living:
        if _rank(synset) is None and stable_number(synset.key) < SPECIES_KEPT * 2**64:
            _add_species(graph, synsets, synset)


def _rank(synset: Synset) -> str | None:
    """Return the rank that one of the lemmas names: 'genus Homarus'."""
    return next((rank for rank in RANKS if any(lemma.startswith(f"{rank} ") for lemma in synset.lemmas)), None)


def _parent(graph: Graph, synsets: dict[str, Synset], synset: Synset) -> Entity | None:
    """Return the nearest group above that has a rank; ranks between, such as suborders, are passed over."""
    keys = synset.related("#m")
    while len(keys) == 1:
        if f"wn-{keys[0]}" in graph.entities:
            return graph.entities[f"wn-{keys[0]}"]
        keys = synsets[keys[0]].related("#m")
    return None


def _add_group(graph: Graph, synsets: dict[str, Synset], synset: Synset, rank: str) -> None:
    parent = _parent(graph, synsets, synset)
    if rank != "class" and (parent is None or parent.kind == rank):
        return
    lemma = next(lemma for lemma in synset.lemmas if lemma.startswith(f"{rank} "))
    name = lemma.removeprefix(f"{rank} ")
    bare = [other.removeprefix(f"{rank} ") for other in synset.lemmas]
    group = graph.add(
        Entity(
            key=f"wn-{synset.key}",
            kind=rank,
            name=name,
            mention=f"the {rank} {name}",
            aliases=spellings(name, [other for other in (*synset.lemmas, *bare) if other != name]),
            cluster=parent.cluster if parent and parent.kind != "class" else f"wn-{synset.key}",
        )
    )
    if parent and rank != "class":
        draft = Draft(graph, group, "rank")
        _write_group(draft, synset, rank, parent)
        english = [other for other in bare if other[0].islower()]
        if english:
            draft.say("In English one speaks of the {o}.", "Its English name is the {o}.", o=english[0])
        draft.note(f"{parent.kind}_of_{rank}", parent)
        draft.publish()


def _write_group(draft: Draft, synset: Synset, rank: str, parent: Entity) -> None:
    draft.say(
        "{x} is {rank} of {kind}.",
        "Biologists use the name {x} for {rank} of {kind}.",
        rank=with_article(rank),
        kind=KINDS[synset.category],
    )
    draft.say(
        "It is placed in the {r} {o}.",
        "The {r} to which it belongs is {o}.",
        "Above it in the system stands the {r} {o}.",
        r=parent.kind,
        o=parent.name,
    )
    num_members = len(synset.related("%m"))
    if num_members > 1:
        draft.say(
            "{n} groups below it are named in the reference used here.",
            "The reference used here names {n} members of it.",
            n=str(num_members),
        )
    else:
        draft.say("Other systems may draw the lines differently.", "This is how one system among several has it.")


def _add_species(graph: Graph, synsets: dict[str, Synset], synset: Synset) -> None:
    parent = _parent(graph, synsets, synset)
    if parent is None or parent.kind != "genus":
        return
    name = synset.lemmas[0]
    scientific = [lemma for lemma in synset.lemmas[1:] if re.fullmatch(rf"{parent.name} [a-z]+", lemma)]
    if not scientific:
        return
    others = [lemma for lemma in synset.lemmas if lemma not in (name, scientific[0])]
    species = graph.add(
        Entity(
            key=f"wn-{synset.key}",
            kind="species",
            name=name,
            mention=f"the {name}",
            aliases=spellings(name, [scientific[0], *others]),
            cluster=parent.cluster,
        )
    )
    draft = Draft(graph, species, "species")
    draft.say("The {x} is a species of the genus {g}.", "The genus {g} includes the {x}.", g=parent.name)
    draft.say("In Latin it is named {s}.", "Its scientific name is {s}.", s=scientific[0])
    if others:
        draft.say("People also call it {o}.", "Another name for it is {o}.", o=others[0])
    draft.say("It is counted among the {kind}.", "It belongs to the {kind}.", kind=KINDS[synset.category])
    draft.note("genus_of_species", parent)
    draft.note("scientific_name", Value(text=scientific[0]))
    draft.publish()
