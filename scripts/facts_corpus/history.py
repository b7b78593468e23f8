"""Wars, battles, constellations and stars of WordNet."""

from __future__ import annotations

import re

from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.graph import Graph, Value
from scripts.facts_corpus.names import join_words, with_article
from scripts.facts_corpus.sources import Synset
from scripts.facts_corpus.wordnet import instance_kinds, wordnet_entity

_YEAR = re.compile(r"(?<![\d-])\b(\d{3,4})\b(?! BC|-)")
_SPAN = re.compile(r"\b(\d{4})-(\d{4})\b")
_NAME = r"([A-Z]\w+(?: [A-Z]\w+)*)"
_NEAR = re.compile(rf"\b(?:near|between) {_NAME} and {_NAME}")


def add_history(graph: Graph, synsets: dict[str, Synset]) -> None:
    """Take in wars before their battles, and constellations before their stars."""
    kinds = {synset.key: set(instance_kinds(synsets, synset)) for synset in synsets.values()}
    for synset in synsets.values():
        if "war" in kinds[synset.key]:
            _add_war(graph, synset)
        elif "constellation" in kinds[synset.key]:
            _add_constellation(graph, synset)
    for synset in synsets.values():
        if f"wn-{synset.key}" in graph.entities:
            continue
        if {"pitched battle", "naval battle", "siege"} & kinds[synset.key]:
            _add_battle(graph, synsets, synset)
        elif synset.category == "17" and synset.related("#m"):
            _add_star(graph, synset)


def _add_war(graph: Graph, synset: Synset) -> None:
    years = _SPAN.search(synset.gloss)
    if not years:
        return
    war = wordnet_entity(graph, synset, "war", synset.lemmas[0], "the {x}")
    draft = Draft(graph, war, "dates")
    draft.say(
        "The {x} was fought from {a} to {b}.",
        "Fighting in the {x} began in {a} and ended in {b}.",
        a=years[1],
        b=years[2],
    )
    draft.note("war_start", Value(text=years[1], number=float(years[1])))
    draft.note("war_end", Value(text=years[2], number=float(years[2])))
    draft.say("That makes it a war of the {century}th century.", century=str(int(years[1]) // 100 + 1))
    if len(synset.lemmas) > 1:
        draft.say("It is known as well by the name {o}.", o=synset.lemmas[1])
    draft.publish()


def _add_battle(graph: Graph, synsets: dict[str, Synset], synset: Synset) -> None:
    wars = synset.related("#p")
    years = set(_YEAR.findall(synset.gloss))
    if not wars and len(years) != 1:
        return
    kind = instance_kinds(synsets, synset)[0]
    name = next((lemma for lemma in synset.lemmas if "attle" in lemma), synset.lemmas[0])
    mention = "the {x}" if "attle" in name else f"the {kind.split(' ')[-1]} of {{x}}"
    war = graph.entities.get(f"wn-{wars[0]}") if len(wars) == 1 else None
    battle = wordnet_entity(graph, synset, "battle", name[0].upper() + name[1:], mention, war.cluster if war else "")
    draft = Draft(graph, battle, "dates", called=battle.mention)
    draft.say("{x} is on record as {kind}.", "{x} was {kind}.", kind=with_article(kind))
    if wars:
        names = [synsets[key].lemmas[0] for key in wars]
        draft.say("It was part of the {o}.", "It was fought in the course of the {o}.", o=join_words(names))
        if len(wars) == 1:
            draft.note("battle_of", war or Value(text=names[0]))
    if len(years) == 1:
        (year,) = years
        draft.say("It took place in {o}.", "The year of the fighting was {o}.", o=year)
        draft.note("battle_year", Value(text=year, number=float(year)))
    draft.say("Armies met there and soldiers lost their lives.", "Two sides met there under arms.")
    draft.publish()


def _add_constellation(graph: Graph, synset: Synset) -> None:
    hemisphere = re.search(r"\b(northern|southern) hemisphere", synset.gloss)
    if not hemisphere:
        return
    draft = Draft(
        graph, wordnet_entity(graph, synset, "constellation", synset.lemmas[0], "the constellation {x}"), "sky"
    )
    draft.say(
        "{x} is a constellation of the {o} hemisphere of the sky.",
        "The constellation {x} belongs to the {o} sky, that of the {o} hemisphere.",
        o=hemisphere[1],
    )
    draft.note("hemisphere", Value(text=hemisphere[1], aliases=(f"{hemisphere[1]} hemisphere",)))
    near = _NEAR.search(synset.gloss)
    if near:
        draft.say("Its neighbours among the star patterns are {a} and {b}.", a=near[1], b=near[2])
    draft.say("Observers find it by the figure that its stars seem to draw.")
    draft.publish()


def _add_star(graph: Graph, synset: Synset) -> None:
    homes = [graph.entities.get(f"wn-{key}") for key in synset.related("#m")]
    known = [home for home in homes if home and home.kind == "constellation"]
    if len(known) != 1:
        return
    star = wordnet_entity(graph, synset, "star", synset.lemmas[0], "the star {x}", known[0].cluster)
    draft = Draft(graph, star, "sky")
    draft.say(
        "{x}{also} is a star in {o}.",
        "The star {x}{also} shines in {o}.",
        also=f", also called {synset.lemmas[1]}," if len(synset.lemmas) > 1 else "",
        o=known[0].name,
    )
    draft.say("It is one of the bright points by which observers know that part of the sky.")
    draft.note("star_in", known[0])
    draft.publish()
