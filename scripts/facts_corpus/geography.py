"""Places, states and universities of WordNet: what lies in what."""

from __future__ import annotations

import re

from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.graph import Entity, Graph, Value
from scripts.facts_corpus.names import join_words, spellings, with_article
from scripts.facts_corpus.sources import Synset
from scripts.facts_corpus.wordnet import instance_kinds, wordnet_entity

LEFT_OUT = re.compile(
    r"country|nation|state|continent|Colony|kingdom|empire|period|district|territory|dominion|province|line|"
    r"constellation|star|giant|galaxy|battle|siege|war$"
)
"""Kinds that are taken from elsewhere, or that no question can be asked about."""

WITH_THE = ("river", "sea", "desert", "gulf", "strait", "peninsula", "ocean", "range")
"""Kinds whose names have an article: the Don River, but Lake Superior."""

_HEIGHT = re.compile(r"\(([\d,]+) feet (?:high|above)")
_DIRECTION = r"((?:north|south|east|west)\w*(?: central)?|central) "
_MOUTH = re.compile(r"\b(?:into|to) the ([A-Z]\w+(?: [A-Z]\w+)* (?:River|Sea|Ocean|Bay)|(?:Gulf|Bay) of [A-Z]\w+)")
_GROUP = re.compile(
    r"\b(Mountains|Islands|Isles|Lakes|Alps|Andes|Himalayas|Highlands|Provinces|West|South|North|East|Pacific|"
    r"Atlantic|Midwest|Caribbean|Arctic|Sea|Ocean)$"
)


def add_geography(graph: Graph, synsets: dict[str, Synset]) -> None:
    """Take in the United States' states first, then what lies in them and elsewhere, then universities."""
    kinds = {synset.key: instance_kinds(synsets, synset) for synset in synsets.values()}
    states = _add_states(graph, synsets, kinds)
    for synset in synsets.values():
        if synset.category in ("15", "17") and synset.key not in states:
            _add_place(graph, synsets, synset, kinds[synset.key], states)
    for synset in synsets.values():
        if {"university", "college"} & set(kinds[synset.key]):
            _add_university(graph, synset)


def _add_states(graph: Graph, synsets: dict[str, Synset], kinds: dict[str, list[str]]) -> dict[str, Entity]:
    capitals = {
        part: synset
        for synset in synsets.values()
        if "state capital" in kinds[synset.key] and any("capital of" in lemma for lemma in synset.lemmas)
        for part in synset.related("#p")
    }
    states = {}
    for synset in synsets.values():
        if "American state" in kinds[synset.key]:
            state = wordnet_entity(graph, synset, "state", synset.lemmas[0], "the US state of {x}")
            states[synset.key] = state
            _add_state_names(graph, state, synset)
            if synset.key in capitals:
                _add_state_capital(graph, state, capitals[synset.key])
    return states


def _add_state_names(graph: Graph, state: Entity, synset: Synset) -> None:
    draft = Draft(graph, state, "names")
    draft.say("{x} is one of the states that make up the United States of America.")
    nicknames = [lemma for lemma in synset.lemmas if re.search(r"\b(State|of|Rhody|Dominion)\b", lemma)]
    if nicknames:
        draft.say("By nickname it is the {o}.", "Its nickname is the {o}.", o=nicknames[0])
        draft.note("nickname", Value(text=nicknames[0], aliases=tuple(nicknames[1:])))
    codes = [lemma for lemma in synset.lemmas if re.fullmatch("[A-Z]{2}", lemma)]
    if codes:
        draft.say("On letters it is shortened to the postal code {o}.", "The postal code for it is {o}.", o=codes[0])
        draft.note("postal_code", Value(text=codes[0]))
    draft.publish()


def _add_state_capital(graph: Graph, state: Entity, synset: Synset) -> None:
    name = synset.lemmas[0]
    others = [lemma for lemma in synset.lemmas[1:] if not lemma.startswith("capital of")]
    draft = Draft(graph, state, "capital")
    draft.say(
        "The government of {x} sits in {o}, the state capital.",
        "{o} is the state capital of {x}.",
        "{x} has {o} as its state capital.",
        o=name,
    )
    draft.say("There the governor and the lawmakers of the state do their work.")
    draft.note("state_capital", Value(text=name, aliases=spellings(name, others)))
    draft.publish()


def _add_place(
    graph: Graph, synsets: dict[str, Synset], synset: Synset, all_kinds: list[str], states: dict[str, Entity]
) -> None:
    kinds = [kind for kind in all_kinds if not LEFT_OUT.search(kind)]
    parents = synset.related("#p")
    if not kinds or not parents or graph.find(synset.lemmas[0], "country", "territory"):
        return
    homes = [states.get(key) or _country(graph, synsets[key]) for key in parents]
    known = [home for home in homes if home]
    name = _place_name(synset.lemmas, kinds[0])
    mention = _mention(name, kinds[0])
    place = wordnet_entity(graph, synset, "place", name, mention, known[0].cluster if len(known) == 1 else "")
    names = [
        home.mention if home else _with_the(synsets[key].lemmas[0]) for home, key in zip(homes, parents, strict=True)
    ]
    others = [lemma for lemma in synset.lemmas if lemma != name]
    draft = Draft(graph, place, "place")
    draft.say(
        "{x}{also} is {kind} in {where}.",
        "In {where} lies {x}{also}, {kind}.",
        "{x}{also}, {kind}, is found in {where}.",
        also=f" (or {others[0]})" if others else "",
        kind=with_article(join_words(kinds[:2])),
        where=join_words(names),
    )
    if len(known) == 1:
        draft.note("place_country" if known[0].kind == "country" else "place_state", known[0])
    direction = re.search(_DIRECTION + re.escape(synsets[parents[0]].lemmas[0]), synset.gloss)
    if direction and len(parents) == 1:
        draft.say("It belongs to the {d} part.", "Its place is in the {d} part.", d=direction[1])
    _add_nature(draft, synset, kinds[0])
    draft.say(
        "It stands in gazetteers among the world's {k}.",
        "Atlases list it with other {k}.",
        "On a map one finds it marked like other {k}.",
        k=_plural(kinds[0]),
    )
    draft.publish()


def _add_nature(draft: Draft, synset: Synset, kind: str) -> None:
    mouth = _MOUTH.search(synset.gloss) if kind == "river" else None
    if mouth:
        draft.say("Its water ends up in the {o}.", "It flows to the {o}.", o=mouth[1])
        draft.note("mouth", Value(text=mouth[1]))
    height = _HEIGHT.search(synset.gloss)
    if height:
        number = float(height[1].replace(",", ""))
        draft.say("It is {o} high.", "Its height is {o}.", o=f"{height[1]} feet")
        draft.note("feet", Value(text=f"{height[1]} feet", aliases=(f"{height[1]} ft", height[1]), number=number))


def _add_university(graph: Graph, synset: Synset) -> None:
    cities = [graph.entities.get(f"wn-{key}") for key in synset.related("#p")]
    known = [city for city in cities if city and city.kind == "place"]
    if len(known) != 1:
        return
    name = max(synset.lemmas, key=len)
    mention = "the {x}" if name.startswith("University") else "{x}"
    university = wordnet_entity(graph, synset, "university", name, mention, known[0].cluster)
    draft = Draft(graph, university, "place", called=university.mention)
    draft.say("{x} has its seat in {o}.", "The home of {x} is {o}.", o=known[0].name)
    draft.say("It is a place of higher learning where students take degrees and scholars do research.")
    draft.note("university_in", known[0])
    draft.publish()


def _country(graph: Graph, synset: Synset) -> Entity | None:
    """Return the country of a synset, unless its name is also a state's: Georgia."""
    found = {graph.find(lemma, "country") for lemma in synset.lemmas if len(lemma) > 3} - {None}
    is_country = len(found) == 1 and not graph.find(synset.lemmas[0], "state")
    return found.pop() if is_country else None


def _place_name(lemmas: tuple[str, ...], kind: str) -> str:
    """Return 'Don River' rather than 'Don', but never 'Windy City'."""
    longer = [lemma for lemma in lemmas if lemma.lower().endswith(kind) and kind not in ("city", "town")]
    return (longer or lemmas)[0]


def _mention(name: str, kind: str) -> str:
    """Return the name behind words that say what it names, unless the name says so itself."""
    if kind not in name.lower():
        return f"the {kind} {{x}}"
    return "the {x}" if kind in WITH_THE else "{x}"


def _with_the(name: str) -> str:
    return f"the {name}" if _GROUP.search(name) else name


def _plural(kind: str) -> str:
    if kind.endswith("y") and kind[-2] not in "aeiou":
        return kind[:-1] + "ies"
    return kind + ("es" if kind.endswith(("s", "sh", "ch")) else "s")
