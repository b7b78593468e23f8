"""Countries and territories of the World Factbook, under the names that people write."""

from __future__ import annotations

import re

from scripts.facts_corpus.country_passages import TOPICS
from scripts.facts_corpus.factbook import Profile, read
from scripts.facts_corpus.graph import Entity, Graph
from scripts.facts_corpus.names import spellings

NAMES = {
    "ae": "United Arab Emirates",
    "bf": "Bahamas",
    "cf": "Republic of the Congo",
    "cg": "Democratic Republic of the Congo",
    "ct": "Central African Republic",
    "dr": "Dominican Republic",
    "fk": "Falkland Islands",
    "fm": "Federated States of Micronesia",
    "ga": "Gambia",
    "gz": "Gaza Strip",
    "io": "British Indian Ocean Territory",
    "sh": "Saint Helena, Ascension, and Tristan da Cunha",
    "sv": "Svalbard",
    "um": "United States Pacific Island Wildlife Refuges",
    "vt": "Vatican City",
}
"""Names where the short form of the Factbook is missing or not what people write."""

ALIASES = {
    "bm": ["Myanmar"],
    "cf": ["Congo-Brazzaville", "Congo Republic"],
    "cg": ["DR Congo", "DRC", "Congo-Kinshasa", "Democratic Republic of Congo"],
    "cv": ["Cape Verde"],
    "ez": ["Czech Republic"],
    "iv": ["Ivory Coast"],
    "mk": ["Macedonia"],
    "rs": ["Russian Federation"],
    "tt": ["East Timor"],
    "tu": ["Türkiye", "Turkiye"],
    "uk": ["UK", "Great Britain", "Britain", "U.K."],
    "us": ["US", "USA", "U.S.", "U.S.A.", "America"],
    "wz": ["Swaziland"],
}
"""Other names in common use."""

LEFT_OUT = ("ee", "xx")
"""Profiles of the European Union and of the whole world."""

DISPUTED = ("ay", "gz", "pf", "pg", "we", "wi")
"""Places whose status is disputed, or that have no state: passages, but no questions."""

_ARTICLE = re.compile(
    r"^(Republic|Democratic|United|Central African|Dominican Rep|Federated|British|French South|Gambia$|Bahamas$|"
    r"Netherlands$|Philippines$|Maldives$|Comoros$|Seychelles$|Isle of)|(Islands|Lands)$"
)


def add_countries(graph: Graph, profiles: dict[str, Profile]) -> dict[str, Entity]:
    """Take in every country and territory with its passages; return them by the code of their profile."""
    countries = {
        code: graph.add(_country(code, profile))
        for code, profile in profiles.items()
        if code not in LEFT_OUT and "Country name" in profile.get("Government", {})
    }
    for code, country in countries.items():
        for write in TOPICS:
            write(graph, country, profiles[code])
    return countries


def _country(code: str, profile: Profile) -> Entity:
    short = read(profile, "Government", "Country name", "conventional short form").split(" (")[0]
    official = read(profile, "Government", "Country name", "conventional long form").split(" (")[0]
    name = NAMES.get(code) or short or official
    is_state = code not in DISPUTED and not read(profile, "Government", "Dependency status") and len(name) < 40
    has_article = _ARTICLE.search(name) is not None
    abbreviation = read(profile, "Government", "Country name", "abbreviation").split(" ")[0]
    known = [short, official, *ALIASES.get(code, [])] + ([abbreviation] if len(abbreviation) > 2 else [])
    return Entity(
        key=f"fb-{code}",
        kind="country" if is_state else "territory",
        name=name,
        mention=f"the {name}" if has_article else name,
        aliases=spellings(name, (alias for alias in known if alias)),
        cluster=f"fb-{code}",
    )
