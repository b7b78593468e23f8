"""People and fictional characters of WordNet: nationality, trade, years of birth and death, creator.

Only people whose two years are both known are taken, so no passage speaks of the living.
"""

from __future__ import annotations

import re
from collections import Counter

from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.graph import Graph, Value
from scripts.facts_corpus.names import join_words, with_article
from scripts.facts_corpus.sources import Synset
from scripts.facts_corpus.wordnet import instance_kinds, wordnet_entity

BRITISH = {"English": "England", "Scottish": "Scotland", "Welsh": "Wales", "British": "the United Kingdom"}
"""Adjectives that the Factbook lacks, as it knows the United Kingdom only as a whole."""

UNCLEAR = {"American": "", "Indian": ""}
"""Adjectives that in WordNet do not always mean a country."""

NOT_TRADES = {
    "anarchist",
    "communist",
    "courtier",
    "dictator",
    "existentialist",
    "leader",
    "martyr",
    "mystic",
    "patriot",
    "settler",
    "socialist",
    "wife",
}
"""What WordNet calls people by, yet is not what they did for a living."""

MIN_TRADE_COUNT = 4
"""A trade is named where at least so many people have it: rarer words are often judgements."""

LIFE_SPANS = range(15, 105)
"""Years that a life may have lasted; others are slips of the source."""

_YEARS = re.compile(r"\((\d{3,4})-(\d{3,4})\)")
_BORN_IN = re.compile(r"\bborn in ([A-Z]\w+(?: [A-Z]\w+)?)\b")
_PRESIDENT = re.compile(r"^(\d+(?:st|nd|rd|th)) President of the United States")
_CREATOR = re.compile(
    r"\bby ((?:[A-Z][\w.]+ ){0,3}[A-Z][\w-]+)|\b((?:[A-Z]\w+ ){0,2}[A-Z]\w+)'s (?:tragedy|plays?|novels?)"
)
_TITLES = re.compile(
    r"^(Sir|Dame|General|Saint|St\.|President|King|Queen|Lord|Lady|Mrs\.|Baron|Count|Duke|Captain|"
    r"(First|Second|Third|Fourth|\d\w+) (Baron|Earl|Viscount|Marquess|Marquis|Duke|Lord)) "
)


def add_people(graph: Graph, synsets: dict[str, Synset]) -> None:
    """Take in the people, then the characters that some of them created."""
    person = next(
        (synset.key for synset in synsets.values() if synset.category == "03" and "person" in synset.lemmas), ""
    )
    kinds = {synset.key: instance_kinds(synsets, synset) for synset in synsets.values() if synset.category == "18"}
    people = [key for key in kinds if _is_a(synsets, synsets[key], person)]
    counts = Counter(kind for key in people for kind in kinds[key])
    demonyms = _demonyms(graph)
    for key in people:
        named = [kind for kind in kinds[key] if kind.islower() and counts[kind] >= MIN_TRADE_COUNT]
        trades = ["painter" if kind == "old master" else kind for kind in named if kind not in NOT_TRADES]
        _add_person(graph, synsets[key], trades[:2], demonyms)
    for key, found in kinds.items():
        if "fictional character" in found:
            _add_character(graph, synsets[key])


def full_name(lemmas: tuple[str, ...]) -> str:
    """Return the usual name: the first of several words that ends in the family name and has no title before it.

    Where all of these have a title, it is another name of several words; where there are none, it is the first word.
    """
    family = lemmas[0]
    full = [lemma for lemma in lemmas if lemma.endswith(f" {family}")]
    if not full:
        return family
    several = [lemma for lemma in lemmas if " " in lemma]
    return next((lemma for lemma in (*full, *several) if not _TITLES.match(lemma)), full[0])


def _demonyms(graph: Graph) -> dict[str, str]:
    """Return the country, as it stands in sentences, of each adjective that belongs to one country only."""
    facts = graph.facts("demonym")
    counts = Counter(fact.value.text for fact in facts)
    found = {fact.value.text: fact.subject for fact in facts if counts[fact.value.text] == 1}
    return {word: graph.entities[key].mention for word, key in found.items()} | BRITISH | UNCLEAR


def _add_person(graph: Graph, synset: Synset, trades: list[str], demonyms: dict[str, str]) -> None:
    years = _YEARS.search(synset.gloss)
    if not years or int(years[2]) - int(years[1]) not in LIFE_SPANS:
        return
    name = full_name(synset.lemmas)
    others = [lemma for lemma in synset.lemmas if lemma != name]
    country = _nationality(synset.gloss, demonyms)
    home = graph.find(country, "country") if country else None
    person = wordnet_entity(graph, synset, "person", name, "{x}", home.cluster if home else "")
    draft = Draft(graph, person, "life")
    draft.say(
        "{x} was {what}{source}.",
        "{x} is remembered as {what}{source}.",
        what=with_article(join_words(trades)) if trades else "a historical figure",
        source=f" from {country}" if country else "",
    )
    draft.say(
        "Born in {b}, {x} died in {d}.",
        "The life of {x} began in {b} and ended in {d}.",
        "{x} was born in {b}; death came in {d}.",
        b=years[1],
        d=years[2],
    )
    draft.note("birth_year", Value(text=years[1], number=float(years[1])))
    draft.note("death_year", Value(text=years[2], number=float(years[2])))
    if country and not _BORN_IN.search(synset.gloss):  # who moved has two home countries
        draft.note("nationality", home or Value(text=country))
    if len(trades) == 1:
        draft.note("trade", Value(text=trades[0]))
    full = [other for other in others if " " in other and not _TITLES.match(other)]
    if full:
        draft.say("The name is also given as {o}.", "Another form of the name is {o}.", o=full[0])
    _add_birthplace(graph, synset, draft)
    _add_presidency(synset, draft)
    draft.publish()


def _nationality(gloss: str, demonyms: dict[str, str]) -> str:
    text = re.sub(r"^(\([^()]*\) )?(a |an |the )?", "", gloss)
    if text.startswith("United States "):
        return "the United States"
    return demonyms.get(re.split(r"[ ,;]", text)[0], "")


def _add_birthplace(graph: Graph, synset: Synset, draft: Draft) -> None:
    found = _BORN_IN.search(synset.gloss)
    country = graph.find(found[1], "country") if found else None
    if country:
        draft.say("The place of birth was in {o}.", "{o} was the country of birth.", o=country.mention)
        draft.note("birth_country", country)


def _add_presidency(synset: Synset, draft: Draft) -> None:
    found = _PRESIDENT.match(synset.gloss)
    if found:
        draft.say("In the line of presidents of the United States, {x} was the {o}.", o=found[1])
        draft.note("presidency", Value(text=found[1]))


def _add_character(graph: Graph, synset: Synset) -> None:
    names = [match[1] or match[2] for match in _CREATOR.finditer(synset.gloss)]
    creators = list(filter(None, (graph.find(name, "person") for name in names)))
    if not creators:
        return
    name = synset.lemmas[0] if " " in synset.lemmas[0] else full_name(synset.lemmas)
    others = [lemma for lemma in synset.lemmas if lemma != name]
    character = wordnet_entity(graph, synset, "character", name, "the fictional character {x}", creators[0].cluster)
    draft = Draft(graph, character, "story")
    draft.say(
        "{x}{also} is a fictional character.",
        "The fictional character {x}{also} never lived.",
        also=f", also called {others[0]}," if others else "",
    )
    draft.say("The figure was invented by {o}.", "The author behind the figure is {o}.", o=creators[0].name)
    draft.say("It belongs to the world of stories, not to history.", "One meets it in stories, not in history.")
    draft.note("creator", creators[0])
    draft.publish()


def _is_a(synsets: dict[str, Synset], synset: Synset, ancestor: str) -> bool:
    """Say whether an instance is one of a class, or of a class below it."""
    keys, seen = synset.related("@i"), set[str]()
    while keys:
        key = keys.pop()
        if key == ancestor:
            return True
        if key not in seen:
            seen.add(key)
            keys += [*synsets[key].related("@"), *synsets[key].related("@i")]
    return False
