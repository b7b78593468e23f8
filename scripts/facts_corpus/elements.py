"""Chemical elements of mendeleev: symbol, number, place in the periodic table, discovery."""

from __future__ import annotations

import re
from typing import Any

from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.graph import Entity, Graph, Value
from scripts.facts_corpus.names import spellings

DISCOVERERS = {
    "A. Crawford": "Adair Crawford",
    "Carl Mosander": "Carl Gustaf Mosander",
    "Charles Hatchet": "Charles Hatchett",
    "Fredrich Ernst Dorn": "Friedrich Ernst Dorn",
    "Fredrich Stromeyer": "Friedrich Stromeyer",
    "Fredrich Wöhler": "Friedrich Wöhler",
    "George Brandt": "Georg Brandt",
    "Jöns Berzelius": "Jöns Jakob Berzelius",
    "Karl Klaus": "Karl Ernst Claus",
    "Marguerite Derey": "Marguerite Perey",
    "Martin Klaproth": "Martin Heinrich Klaproth",
    "Nils Sefström": "Nils Gabriel Sefström",
    "Sir Humphrey Davy": "Humphry Davy",
    "Sir William Crookes": "William Crookes",
    "Sir William Ramsey": "William Ramsay",
    "Smithson Tenant": "Smithson Tennant",
    "William Wollaston": "William Hyde Wollaston",
}
"""Names in the usual spelling, by their spelling in the source."""

BRITISH_SPELLINGS = {"Aluminum": ["Aluminium"], "Cesium": ["Caesium"], "Sulfur": ["Sulphur"]}
"""Spellings that count as right beside the source's."""

DOUBTFUL = ("Platinum",)
"""Elements whose entry mixes two discoveries; nothing is said of them."""

PERIODS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
"""In words: a digit would answer a search for another element's atomic number."""

PERSONS = {
    "Carl Wilhelm Scheele": "Karl Scheele",
    "Humphry Davy": "Humphrey Davy",
    "Jöns Jakob Berzelius": "Jons Jakob Berzelius",
}
"""Discoverers by the name that WordNet has for them, where it is another."""


_ONE_NAME = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){1,4}")
_NO_PERSON = re.compile(r"\band\b|Instit|Laborat|Centre|Univ")


def add_elements(graph: Graph, rows: list[dict[str, Any]]) -> None:
    """Take in every element with a passage on its place in the table and one on its discovery."""
    for row in rows:
        key = f"el-{row['atomic_number']:03}"
        element = graph.add(
            Entity(
                key=key,
                kind="element",
                name=row["name"],
                mention=f"the element {row['name'].lower()}",
                aliases=tuple(BRITISH_SPELLINGS.get(row["name"], ())),
                cluster=key,
            )
        )
        _add_table(graph, element, row)
        if row["discovery_year"] and row["discoverers"] and element.name not in DOUBTFUL:
            _add_discovery(graph, element, row)


def _add_table(graph: Graph, element: Entity, row: dict[str, Any]) -> None:
    number = str(row["atomic_number"])
    draft = Draft(graph, element, "table")
    draft.say(
        "{x} is a chemical element with the symbol {s} and the atomic number {n}.",
        "The chemical element {x} has the symbol {s} and the atomic number {n}.",
        s=row["symbol"],
        n=number,
    )
    draft.say(
        "In the periodic table it stands in the {p} period.",
        "Its place is in the {p} period of the periodic table.",
        p=PERIODS[row["period"] - 1],
    )
    draft.say("It is classed with the {c}.", "Chemists count it among the {c}.", c=row["series"].lower())
    draft.note("symbol_of", Value(text=row["symbol"]))
    draft.note("atomic_number", Value(text=number, number=float(number)))
    draft.publish()


def _add_discovery(graph: Graph, element: Entity, row: dict[str, Any]) -> None:
    year, where = str(row["discovery_year"]), row["discovery_location"] or ""
    draft = Draft(graph, element, "discovery")
    draft.say("The discovery of {x} is dated to {y}.", "{x} was discovered in {y}.", y=year)
    draft.note("discovery_year", Value(text=year, number=float(year)))
    who = DISCOVERERS.get(row["discoverers"].strip(), row["discoverers"].strip())
    if _ONE_NAME.fullmatch(who) and not _NO_PERSON.search(who):
        person = graph.find(PERSONS.get(who, who), "person")
        name = person.name if person else who
        draft.say("The discoverer of {x} was {o}.", "As the discoverer of {x} one names {o}.", o=name)
        draft.note("discoverer", person or Value(text=who, aliases=spellings(who)))
    if where and not re.search("[/,]", where):
        country = graph.find(where, "country")
        place = country.mention if country else where
        draft.say("The place of its discovery was in {o}.", "It was first found in {o}.", o=place)
        draft.note("discovery_place", country or Value(text=where))
    draft.say("Like every element it was given its own name and a place among the others.")
    draft.publish()
