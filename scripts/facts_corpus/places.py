"""Places that the World Factbook names: administrative divisions, ports, lakes and World Heritage Sites."""

from __future__ import annotations

import re
from collections import defaultdict

from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.factbook import Profile, read
from scripts.facts_corpus.graph import Entity, Graph, Value
from scripts.facts_corpus.names import join_words, name_key, spellings, with_article

DIVISIONS = (
    "atoll",
    "autonomous region",
    "canton",
    "commune",
    "county",
    "department",
    "district",
    "division",
    "emirate",
    "governorate",
    "island",
    "municipality",
    "parish",
    "prefecture",
    "province",
    "region",
    "state",
    "voivodship",
)
"""Kinds of administrative divisions that are called by their name; others are 'administrative divisions'."""

HERITAGE = {"c": "a cultural property", "n": "a natural property", "m": "a property both cultural and natural"}
"""What the letters behind a World Heritage Site mean."""

_PORT_WORD = re.compile(r"(?i)\b(port|terminal|harbou?r|porto|puerto)\b")
_LAKE_WORD = re.compile(r"(?i)lake|lac|lago|laguna|lagoa|ozero|hayk|sea")


def add_places(graph: Graph, countries: dict[str, Entity], profiles: dict[str, Profile]) -> None:
    """Take in the places of every country."""
    for code, country in countries.items():
        _add_divisions(graph, country, profiles[code])
        _add_ports(graph, country, profiles[code])
        _add_lakes(graph, country, profiles[code])
    _add_heritage(graph, countries, profiles)


def _place(graph: Graph, country: Entity, kind: str, number: int, names: list[str], mention: str) -> Entity:
    return graph.add(
        Entity(
            key=f"{country.key}-{kind}{number:02}",
            kind=kind,
            name=names[0],
            mention=mention.format(x=names[0]),
            aliases=spellings(names[0], names[1:]),
            cluster=country.cluster,
        )
    )


def _add_divisions(graph: Graph, country: Entity, profile: Profile) -> None:
    text = read(profile, "Government", "Administrative divisions")
    head, _, tail = text.partition("; ") if ";" in text else text.partition(": ")
    found = re.match(r"\d+ ([a-z ]+?)(?: \(|,|$)", head)
    if not found or not tail:
        return
    kind, kinds = _division_kind(found[1], is_mixed="*" in text)
    all_names = [_names(part) for part in re.split(r", (?![^(]*\))", tail)]
    previous = ""
    for number, names in enumerate(filter(None, all_names), start=1):
        place = _place(graph, country, "division", number, names, f"the {kind} of {{x}}")
        draft = Draft(graph, place, "place")
        draft.say(
            "{x}{also} is {kind} of {c}.",
            "{c} counts {x}{also} among its {kinds}.",
            "{x}{also} is {kind} and belongs to {c}.",
            also=f" (also {names[1]})" if len(names) > 1 else "",
            kind=with_article(kind),
            kinds=kinds,
            c=country.mention,
        )
        draft.say(
            "The country lists {n} such first-level divisions in all.",
            "It is one of the first-level units into which the land is divided.",
            n=str(len(all_names)),
        )
        if previous:
            draft.say(
                "In an alphabetical list of the {kinds} it comes after {p}.",
                "Its name follows {p} in the list of {kinds}.",
                kinds=kinds,
                p=previous,
            )
        previous = names[0]
        draft.note("division_of", country)
        draft.publish()


def _division_kind(plural: str, is_mixed: bool) -> tuple[str, str]:
    """Return what one division is called and what several are."""
    singular = {"parishes": "parish"}.get(plural) or re.sub("ie$", "y", plural.removesuffix("s"))
    if is_mixed or singular not in DIVISIONS:
        return "administrative division", "administrative divisions"
    return singular, plural


def _add_ports(graph: Graph, country: Entity, profile: Profile) -> None:
    parts = [_names(part) for part in read(profile, "Transportation", "Ports", "key ports").split(", ")]
    ports = [names for names in parts if names]
    for number, names in enumerate(ports, start=1):
        mention = "{x}" if _PORT_WORD.search(names[0]) else "the port of {x}"
        draft = Draft(graph, _place(graph, country, "port", number, names, mention), "place")
        draft.say(
            "Ships that call in {c} may put in at {x}.",
            "{x} is a seaport or river port of {c}.",
            "Among the ports of {c} is {x}.",
            c=country.mention,
        )
        draft.say("It counts as one of the key ports there.", "It is named as a key port.")
        others = [other[0] for other in ports[max(0, number - 2) : number + 1] if other is not names]
        if others:
            draft.say("Other harbours of the same country: {o}.", "Cargo is also handled at {o}.", o=join_words(others))
        draft.note("port_of", country)
        draft.publish()


def _add_lakes(graph: Graph, country: Entity, profile: Profile) -> None:
    number = 0
    for water in ("fresh", "salt"):
        text = read(profile, "Geography", "Major lakes (area sq km)", f"{water} water lake(s)")
        for found in filter(None, (re.fullmatch(r"([^()\d]+?) - ([\d,]+) sq km", part) for part in text.split("; "))):
            number += 1
            mention = "{x}" if _LAKE_WORD.search(found[1]) else "the lake {x}"
            draft = Draft(graph, _place(graph, country, "lake", number, [found[1]], mention), "place")
            area = f"{found[2]} square kilometres"
            draft.say(
                "{x} is a {w}-water lake in {c}.",
                "The {w}-water lake {x} lies in {c}.",
                w=water,
                c=country.mention,
            )
            draft.say(
                "Its surface covers {o}, which makes it a major lake of the country.",
                "With {o} it is one of the major lakes there.",
                o=area,
            )
            draft.note("lake_in", country)
            draft.note("lake_area", Value(text=area, number=float(found[2].replace(",", ""))))
            draft.publish()


def _add_heritage(graph: Graph, countries: dict[str, Entity], profiles: dict[str, Profile]) -> None:
    """Take in World Heritage Sites by name, as some belong to several countries."""
    sites: dict[str, list[tuple[Entity, str, str]]] = defaultdict(list)
    for code, country in countries.items():
        text = read(profiles[code], "Government", "National heritage", "selected World Heritage Site locales")
        for part in text.split(";"):
            found = re.fullmatch(r"\s*(.+?)\s*(?:\( ?([cnm])\))?\s*", part)
            if found and 3 < len(found[1]) < 70:
                sites[name_key(found[1])].append((country, found[1], found[2] or ""))
    for number, entries in enumerate(sites.values()):
        country, name, kind = entries[0]
        owners = [owner for owner, _, _ in entries]
        site = _place(graph, country, "heritage", number, [name], "the World Heritage Site {x}")
        draft = Draft(graph, site, "place")
        draft.say(
            "{x} is a World Heritage Site in {c}.",
            "The World Heritage Site {x} lies in {c}.",
            "{c} is home to the World Heritage Site {x}.",
            c=join_words([owner.mention for owner in owners]),
        )
        draft.say(
            "It is protected by an international convention, as {k}.",
            "On the list of protected places it stands as {k}.",
            k=HERITAGE.get(kind, "one place of many"),
        )
        draft.note("heritage_in", *owners)
        draft.publish()


def _names(part: str) -> list[str]:
    """Return name and alias of an entry: 'Alger (Algiers)', 'Banjul*'; empty where it is not plainly a name."""
    found = re.fullmatch(r"('?[^\W\d_a-z][^()\d:]*?)\*{0,3}(?: \(([^()]+)\))?\*{0,3}", part.strip())
    if not found or len(found[1]) > 40:
        return []
    return [found[1], *([found[2]] if found[2] else [])]
