"""What can be asked about each kind of fact, in words, and which search finds it.

A relation leads from a subject to a value ("the capital of Peru"). Where a value belongs to one subject only, it can be
walked backwards too ("the country whose capital is Lima").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Relation:
    """The words of one relation; ``{x}`` is the subject, or, walked backwards, the value."""

    subject_kind: str
    """Kind of the entities it starts from."""
    value_kind: str = ""
    """Kind of the entities it leads to; empty where it leads to texts such as years."""
    ask: tuple[str, ...]
    """Whole questions for the value."""
    phrase: tuple[str, ...] = ()
    """Noun phrases for the value, to stand inside a longer question; needed where it leads to entities."""
    query: str
    """A search that finds the passage, given the subject's name."""
    inverse_ask: tuple[str, ...] = ()
    """Whole questions for the subject, given the value; empty where it is not walked backwards."""
    inverse_phrase: tuple[str, ...] = ()
    """Noun phrases for the subject, given the value."""
    inverse_query: str = ""
    """A search that finds the passage, given the value."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A question that compares two subjects by a number that both have; the answer is one of their names."""

    relation: str
    """Where the numbers stand."""
    larger: tuple[str, ...]
    """Questions for the subject with the larger number; ``{x}`` and ``{y}`` are the two."""
    smaller: tuple[str, ...]
    """Questions for the subject with the smaller number."""
    margin: float
    """The numbers differ at least by this share of the larger, so that rounding cannot turn the answer round."""


RELATIONS: dict[str, Relation] = {
    # countries
    "official_name": Relation(
        subject_kind="country",
        ask=("What is the official long name of {x}?", "What is the full official name of {x}?"),
        query="official name of {x}",
    ),
    "local_name": Relation(
        subject_kind="country",
        ask=("What short name do people in {x} use for their own country?", "What is the short local name of {x}?"),
        query="local name of {x}",
    ),
    "former_name": Relation(
        subject_kind="country",
        ask=("What was {x} formerly known as?", "What was the earlier name of {x}?"),
        query="former name of {x}",
        inverse_ask=("Which country was formerly known as {x}?", "What is the country once called {x} called now?"),
        inverse_phrase=("the country formerly known as {x}", "the country once called {x}"),
        inverse_query="{x} former name",
    ),
    "demonym": Relation(
        subject_kind="country",
        ask=("Which adjective describes things from {x}?", "What is the adjective for {x}?"),
        query="{x} adjective for things from the country",
    ),
    "capital": Relation(
        subject_kind="country",
        ask=("What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital of {x}."),
        query="capital of {x}",
        inverse_ask=("Of which country is {x} the capital?", "Which country has {x} as its capital?"),
        inverse_phrase=("the country whose capital is {x}", "the country governed from {x}"),
        inverse_query="{x} is the capital of",
    ),
    "legislature": Relation(
        subject_kind="country",
        ask=("What is the legislature of {x} called locally?", "What is the local name of the legislature of {x}?"),
        query="legislature of {x}",
        inverse_ask=("Which country has a legislature called the {x}?", "In which country does the {x} make the laws?"),
        inverse_phrase=("the country whose legislature is the {x}", "the country where the {x} makes the laws"),
        inverse_query="legislature {x}",
    ),
    "longest_border": Relation(
        subject_kind="country",
        value_kind="country",
        ask=(
            "With which country does {x} have its longest land border?",
            "Which neighbour has the longest border with {x}?",
        ),
        phrase=(
            "the neighbour along the longest land border of {x}",
            "the country that shares the longest land border of {x}",
        ),
        query="longest land border of {x}",
    ),
    "shortest_border": Relation(
        subject_kind="country",
        value_kind="country",
        ask=(
            "With which country does {x} have its shortest land border?",
            "Which neighbour has the shortest border with {x}?",
        ),
        phrase=(
            "the neighbour along the shortest land border of {x}",
            "the country that shares the shortest land border of {x}",
        ),
        query="shortest land border of {x}",
    ),
    "coastline": Relation(
        subject_kind="country",
        ask=("How long is the coastline of {x}?", "How many kilometres of coast does {x} have?"),
        query="coastline of {x}",
    ),
    "highest_point": Relation(
        subject_kind="country",
        ask=("What is the highest point of {x}?", "What is the name of the highest point of {x}?"),
        query="highest point of {x}",
        inverse_ask=("Which country has {x} as its highest point?", "Of which country is {x} the highest point?"),
        inverse_phrase=("the country whose highest point is {x}", "the country that has {x} for its highest point"),
        inverse_query="{x} highest point",
    ),
    "height": Relation(
        subject_kind="country",
        ask=("How high, in metres, is the highest point of {x}?", "How many metres high is the highest point of {x}?"),
        query="highest point of {x}",
    ),
    "lowest_point": Relation(
        subject_kind="country",
        ask=("What is the lowest point of {x}?", "Where is the lowest ground of {x}?"),
        query="lowest ground of {x}",
        inverse_ask=("Which country has {x} as its lowest point?",),
        inverse_phrase=("the country whose lowest point is {x}",),
        inverse_query="lowest ground {x}",
    ),
    "anthem": Relation(
        subject_kind="country",
        ask=("What is the national anthem of {x}?", "What is the title of the national anthem of {x}?"),
        query="national anthem of {x}",
        inverse_ask=(
            'Which country has "{x}" as its national anthem?',
            'Of which country is "{x}" the national anthem?',
        ),
        inverse_phrase=('the country whose national anthem is "{x}"', 'the country that has "{x}" for its anthem'),
        inverse_query="{x} national anthem",
    ),
    "lyricist": Relation(
        subject_kind="country",
        ask=("Who wrote the words of the national anthem of {x}?", "Who is the author of the anthem lyrics of {x}?"),
        query="national anthem of {x} words lyrics",
        inverse_ask=("For which country did {x} write the words of the national anthem?",),
        inverse_phrase=(
            "the country for whose anthem {x} wrote the words",
            "the country whose anthem lyrics are by {x}",
        ),
        inverse_query="{x} wrote lyrics words national anthem",
    ),
    "composer": Relation(
        subject_kind="country",
        ask=("Who composed the music of the national anthem of {x}?", "Who is the composer of the anthem of {x}?"),
        query="national anthem of {x} music composed",
        inverse_ask=("For which country did {x} compose the national anthem?",),
        inverse_phrase=("the country whose anthem was set to music by {x}", "the country whose anthem {x} composed"),
        inverse_query="{x} composed music national anthem",
    ),
    "anthem_year": Relation(
        subject_kind="country",
        ask=(
            "In which year was the national anthem of {x} adopted?",
            "Since which year has {x} had its national anthem?",
        ),
        query="anthem adopted by {x}",
    ),
    "independence_date": Relation(
        subject_kind="country",
        ask=("On what date did {x} become independent?", "When did {x} gain its independence?"),
        query="{x} became independent on",
    ),
    "independence_from": Relation(
        subject_kind="country",
        value_kind="country",
        ask=("From which country did {x} become independent?", "Which country ruled {x} before its independence?"),
        phrase=("the country from which {x} became independent", "the former ruler of {x}"),
        query="{x} became independent from",
    ),
    "holiday": Relation(
        subject_kind="country",
        ask=("What is the national holiday of {x} called?", "What is the name of the national holiday of {x}?"),
        query="national holiday of {x}",
        inverse_ask=("Which country celebrates {x} as its national holiday?",),
        inverse_phrase=("the country whose national holiday is {x}", "the country that celebrates {x}"),
        inverse_query="national holiday {x}",
    ),
    "holiday_date": Relation(
        subject_kind="country",
        ask=("On which day of the year is the national holiday of {x}?", "When is the national holiday of {x} kept?"),
        query="national holiday of {x}",
    ),
    "domain": Relation(
        subject_kind="country",
        ask=("What is the internet country code of {x}?", "In which country code do internet addresses of {x} end?"),
        query="internet country code of {x}",
        inverse_ask=("Which country has the internet country code {x}?",),
        inverse_phrase=("the country with the internet country code {x}",),
        inverse_query="internet country code {x}",
    ),
    "aircraft_prefix": Relation(
        subject_kind="country",
        ask=(
            "Which registration prefix do civil aircraft of {x} carry?",
            "What is the aircraft registration prefix of {x}?",
        ),
        query="{x} civil aircraft registration prefix",
        inverse_ask=("Which country's civil aircraft carry the registration prefix {x}?",),
        inverse_phrase=("the country whose aircraft carry the prefix {x}",),
        inverse_query="civil aircraft registration prefix {x}",
    ),
    "currency": Relation(
        subject_kind="country",
        ask=("What money is used in {x}?", "In which currency are prices given in {x}?"),
        query="money of {x} currency",
    ),
    "currency_code": Relation(
        subject_kind="country",
        ask=("What is the currency code of the money of {x}?", "Which three letters stand for the currency of {x}?"),
        query="currency code of the money of {x}",
        inverse_ask=("Which country's money has the currency code {x}?",),
        inverse_phrase=("the country whose money has the code {x}",),
        inverse_query="money currency code {x}",
    ),
    "symbol": Relation(
        subject_kind="country",
        ask=("What is the national symbol of {x}?", "Which emblem serves {x} as its national symbol?"),
        query="national symbol of {x} national colours",
        inverse_ask=("Which country has the {x} as its national symbol?",),
        inverse_phrase=("the country whose national symbol is the {x}",),
        inverse_query="national symbol {x}",
    ),
    # places
    "division_of": Relation(
        subject_kind="division",
        value_kind="country",
        ask=("To which country does {x} belong?", "Of which country is {x} a part?", "In which country is {x}?"),
        phrase=("the country to which {x} belongs", "the country that {x} is part of"),
        query="{x} first-level division",
    ),
    "port_of": Relation(
        subject_kind="port",
        value_kind="country",
        ask=(
            "In which country is {x}?",
            "To which country does {x} belong?",
            "Which country has {x} among its harbours?",
        ),
        phrase=("the country that {x} serves", "the country where ships call at {x}"),
        query="{x} port harbour",
    ),
    "lake_in": Relation(
        subject_kind="lake",
        value_kind="country",
        ask=("In which country does {x} lie?", "Which country contains {x}?"),
        phrase=("the country where {x} lies", "the country that contains {x}"),
        query="{x} lake water",
    ),
    "heritage_in": Relation(
        subject_kind="heritage",
        value_kind="country",
        ask=("In which country is {x}?", "Which country is home to {x}?"),
        phrase=("the country that is home to {x}", "the country where {x} lies"),
        query="{x} World Heritage Site",
    ),
    "place_country": Relation(
        subject_kind="place",
        value_kind="country",
        ask=("In which country is {x} found?", "In which country does {x} lie?"),
        phrase=("the country where {x} is found", "the country in which {x} lies"),
        query="{x} lies in",
    ),
    "place_state": Relation(
        subject_kind="place",
        value_kind="state",
        ask=("In which US state is {x}?", "Which US state contains {x}?"),
        phrase=("the US state where {x} lies", "the US state that contains {x}"),
        query="{x} lies in US state",
    ),
    "mouth": Relation(
        subject_kind="place",
        ask=("Into what body of water does {x} flow?", "Where does the water of {x} end up?"),
        query="{x} water flows to",
    ),
    "feet": Relation(
        subject_kind="place",
        ask=("How high, in feet, is {x}?", "How many feet high is {x}?"),
        query="{x} height feet high",
    ),
    "university_in": Relation(
        subject_kind="university",
        value_kind="place",
        ask=("In which town or city is {x}?", "Where is the home of {x}?"),
        phrase=("the town that is home to {x}", "the seat of {x}"),
        query="{x} seat home",
    ),
    "nickname": Relation(
        subject_kind="state",
        ask=("What is the nickname of {x}?", "By what nickname is {x} known?"),
        query="{x} state nickname",
        inverse_ask=("Which US state is nicknamed the {x}?",),
        inverse_phrase=("the US state nicknamed the {x}",),
        inverse_query="state nickname {x}",
    ),
    "postal_code": Relation(
        subject_kind="state",
        ask=("What is the postal code of {x}?", "To which two letters is {x} shortened on mail?"),
        query="{x} state postal code",
    ),
    "state_capital": Relation(
        subject_kind="state",
        ask=("What is the state capital of {x}?", "In which city does the government of {x} sit?"),
        query="{x} state capital",
        inverse_ask=("Of which US state is {x} the capital?",),
        inverse_phrase=("the US state whose capital is {x}", "the US state governed from {x}"),
        inverse_query="{x} state capital",
    ),
    # people and stories
    "birth_year": Relation(
        subject_kind="person",
        ask=("In which year was {x} born?", "In what year did the life of {x} begin?"),
        query="{x} born died",
    ),
    "death_year": Relation(
        subject_kind="person",
        ask=("In which year did {x} die?", "In what year did the life of {x} end?"),
        query="{x} born died",
    ),
    "nationality": Relation(
        subject_kind="person",
        value_kind="country",
        ask=("Which country did {x} come from?", "From which country was {x}?"),
        phrase=("the country that {x} came from", "the home country of {x}"),
        query="{x} was from",
    ),
    "birth_country": Relation(
        subject_kind="person",
        value_kind="country",
        ask=("In which country was {x} born?", "What was the country of birth of {x}?"),
        phrase=("the country in which {x} was born", "the country of birth of {x}"),
        query="{x} place of birth country",
    ),
    "trade": Relation(
        subject_kind="person",
        ask=("What was the occupation of {x}?", "What was {x} by profession?"),
        query="{x} was a",
    ),
    "presidency": Relation(
        subject_kind="person",
        ask=("Which number does {x} have in the line of presidents of the United States?",),
        query="{x} line of presidents of the United States",
        inverse_ask=("Who was the {x} President of the United States?",),
        inverse_phrase=("the {x} President of the United States",),
        inverse_query="line of presidents of the United States the {x}",
    ),
    "creator": Relation(
        subject_kind="character",
        value_kind="person",
        ask=("Who invented {x}?", "Which author created {x}?"),
        phrase=("the author who invented {x}", "the creator of {x}"),
        query="{x} fictional character invented author",
    ),
    "battle_of": Relation(
        subject_kind="battle",
        value_kind="war",
        ask=("In which war was {x} fought?", "Of which war was {x} a part?"),
        phrase=("the war in which {x} was fought", "the war that {x} was part of"),
        query="{x} fought war",
    ),
    "battle_year": Relation(
        subject_kind="battle",
        ask=("In which year did {x} take place?", "In which year was {x} fought?"),
        query="{x} year of the fighting",
    ),
    "war_start": Relation(
        subject_kind="war",
        ask=("In which year did {x} begin?", "In which year did fighting begin in {x}?"),
        query="{x} fought from to",
    ),
    "war_end": Relation(
        subject_kind="war",
        ask=("In which year did {x} end?", "Until which year was {x} fought?"),
        query="{x} fought from to",
    ),
    "star_in": Relation(
        subject_kind="star",
        value_kind="constellation",
        ask=("In which constellation does {x} shine?", "To which constellation does {x} belong?"),
        phrase=("the constellation in which {x} shines",),
        query="{x} star shines in",
    ),
    "hemisphere": Relation(
        subject_kind="constellation",
        ask=("In which hemisphere of the sky is {x}?", "To which hemisphere of the sky does {x} belong?"),
        query="constellation {x} hemisphere",
    ),
    # living things
    "genus_of_species": Relation(
        subject_kind="species",
        value_kind="genus",
        ask=("To which genus does {x} belong?", "Which genus includes {x}?"),
        phrase=("the genus that includes {x}", "the genus of {x}"),
        query="{x} species of the genus",
    ),
    "scientific_name": Relation(
        subject_kind="species",
        ask=("What is the scientific name of {x}?", "What is {x} called in Latin?"),
        query="{x} scientific name Latin",
        inverse_ask=("What is the common name of the species {x}?",),
        inverse_phrase=("the species {x}",),
        inverse_query="{x} species",
    ),
    "family_of_genus": Relation(
        subject_kind="genus",
        value_kind="family",
        ask=("To which family does {x} belong?", "In which family is {x} placed?"),
        phrase=("the family that contains {x}", "the family of {x}"),
        query="genus {x} family",
    ),
    "order_of_family": Relation(
        subject_kind="family",
        value_kind="order",
        ask=("To which order does {x} belong?", "In which order is {x} placed?"),
        phrase=("the order that contains {x}", "the order of {x}"),
        query="family {x} order",
    ),
    "class_of_order": Relation(
        subject_kind="order",
        value_kind="class",
        ask=("To which class does {x} belong?", "In which class is {x} placed?"),
        phrase=("the class of {x}",),
        query="order {x} class",
    ),
    # elements
    "symbol_of": Relation(
        subject_kind="element",
        ask=("What is the chemical symbol of {x}?", "By which symbol do chemists write {x}?"),
        query="{x} chemical element symbol",
        inverse_ask=("Which chemical element has the symbol {x}?",),
        inverse_phrase=("the chemical element with the symbol {x}",),
        inverse_query="chemical element symbol {x}",
    ),
    "atomic_number": Relation(
        subject_kind="element",
        ask=("What is the atomic number of {x}?",),
        query="{x} chemical element atomic number",
        inverse_ask=("Which chemical element has the atomic number {x}?",),
        inverse_phrase=("the chemical element with the atomic number {x}",),
        inverse_query="chemical element atomic number {x}",
    ),
    "discovery_year": Relation(
        subject_kind="element",
        ask=("In which year was {x} discovered?", "To which year is the discovery of {x} dated?"),
        query="{x} discovery discovered",
    ),
    "discoverer": Relation(
        subject_kind="element",
        value_kind="person",
        ask=("Who discovered {x}?", "Who is credited with finding {x}?"),
        phrase=("the discoverer of {x}", "the person who found {x}"),
        query="{x} discovery discoverer",
        inverse_ask=("Which chemical element did {x} discover?",),
        inverse_phrase=("the chemical element discovered by {x}",),
        inverse_query="{x} discoverer discovery element",
    ),
    "discovery_place": Relation(
        subject_kind="element",
        value_kind="country",
        ask=("In which country was {x} discovered?", "Where was {x} first found?"),
        phrase=("the country in which {x} was discovered", "the country where {x} was first found"),
        query="place of discovery of {x}",
    ),
}
"""Every relation that questions use, by the name that its facts carry."""

COMPARISONS: tuple[Comparison, ...] = (
    Comparison(
        relation="birth_year",
        larger=("Who was born later, {x} or {y}?", "Who is the younger by year of birth, {x} or {y}?"),
        smaller=("Who was born first, {x} or {y}?", "Which of the two was born earlier, {x} or {y}?"),
        margin=0,
    ),
    Comparison(
        relation="death_year",
        larger=("Who died later, {x} or {y}?",),
        smaller=("Who died first, {x} or {y}?", "Whose death came earlier, that of {x} or that of {y}?"),
        margin=0,
    ),
    Comparison(
        relation="coastline",
        larger=("Which has the longer coastline, {x} or {y}?", "Whose coast is longer: {x} or {y}?"),
        smaller=("Which has the shorter coastline, {x} or {y}?",),
        margin=0.1,
    ),
    Comparison(
        relation="area",
        larger=("Which covers the larger area, {x} or {y}?", "Which is larger by total area: {x} or {y}?"),
        smaller=("Which is smaller by total area, {x} or {y}?",),
        margin=0.1,
    ),
    Comparison(
        relation="height",
        larger=(
            "Which has the higher highest point, {x} or {y}?",
            "Which rises higher at its highest point: {x} or {y}?",
        ),
        smaller=("Which has the lower highest point, {x} or {y}?",),
        margin=0.05,
    ),
    Comparison(
        relation="anthem_year",
        larger=("Which adopted its national anthem later, {x} or {y}?",),
        smaller=("Which adopted its national anthem first, {x} or {y}?",),
        margin=0,
    ),
    Comparison(
        relation="independence_date",
        larger=("Which became independent later, {x} or {y}?",),
        smaller=("Which became independent first, {x} or {y}?", "Which is longer independent, {x} or {y}?"),
        margin=0,
    ),
    Comparison(
        relation="latitude",
        larger=("Which has the capital farther north, {x} or {y}?",),
        smaller=("Which has the capital farther south, {x} or {y}?",),
        margin=0.1,
    ),
    Comparison(
        relation="atomic_number",
        larger=("Which has the higher atomic number, {x} or {y}?",),
        smaller=("Which has the lower atomic number, {x} or {y}?",),
        margin=0,
    ),
    Comparison(
        relation="discovery_year",
        larger=("Which was discovered later, {x} or {y}?",),
        smaller=("Which was discovered first, {x} or {y}?", "Which was found earlier, {x} or {y}?"),
        margin=0,
    ),
    Comparison(
        relation="battle_year",
        larger=("Which took place later, {x} or {y}?",),
        smaller=("Which was fought first, {x} or {y}?",),
        margin=0,
    ),
    Comparison(
        relation="feet",
        larger=("Which is higher, {x} or {y}?",),
        smaller=("Which is less high, {x} or {y}?",),
        margin=0.02,
    ),
    Comparison(
        relation="lake_area",
        larger=("Which has the larger surface, {x} or {y}?",),
        smaller=("Which has the smaller surface, {x} or {y}?",),
        margin=0.1,
    ),
)
"""Every comparison, whose two subjects are of one kind."""

COMPARISON_QUERIES = {"latitude": "capital of {x}", "area": "total area of {x}", "lake_area": "{x} lake surface"}
"""Searches for the numbers of relations that only comparisons use."""
