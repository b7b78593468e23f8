"""A country's passages by topic: names, capital, borders, heights, size, anthem, independence, codes, symbols.

What changes from year to year (people in office, economy, population) is not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.factbook import Profile, person_name, read
from scripts.facts_corpus.graph import Entity, Graph, Value
from scripts.facts_corpus.names import join_words, spellings

MIN_WORDS = 12
"""A country's passage on a topic is left out where there is less to say."""

CLEARLY = 0.95
"""A border is called the longest where the next is shorter than this share of it; shortest likewise."""

_REGIONS = {
    "Antarctic Region": "the Antarctic region",
    "Antarctic RegionAfrica": "the Antarctic region",
    "Arctic Region": "the Arctic region",
    "AsiaEurope": "Europe",
    "Middle East": "the Middle East",
    "Political Map of the World": "the world",
}
"""What the Factbook calls them, and how a sentence does, where the two differ."""

_BORDER = re.compile(r"^(.+?) ([\d,.]+) km")
_HEIGHT = re.compile(r"^(.+?) (-?[\d,]+) m\b")
_ANTHEM = re.compile(r'^"([^"]+)"(?: \(([^()]+)\))?$')
_INDEPENDENCE = re.compile(r"^(\d{1,2} [A-Z][a-z]+ (\d{4})) \(from (?:the )?([^;,()]+)\)")
_HOLIDAY = re.compile(r"^([^,;()]+?)(?: \([^()]+\))?, (\d{1,2} [A-Z][a-z]+)(?: \((\d{4})\))?$")
_CURRENCY = re.compile(r"^([^();]+?) \(([A-Z]{3})\) per")
_COORDINATES = re.compile(r"^(\d+) (\d+) ([NS]), (\d+) (\d+) ([EW])")


def _names(graph: Graph, country: Entity, profile: Profile) -> None:
    draft = _draft(graph, country, "names")
    field = "Government", "Country name"
    region = read(profile, "Geography", "Map references").split(";")[0].split(", ")[0]
    if region:
        draft.say(
            "{x} is a {kind} on the map of {region}.",
            "On maps of {region} one finds the {kind} {x}.",
            kind=country.kind,
            region=_REGIONS.get(region, region),
        )
    official = read(profile, *field, "conventional long form").split(" (")[0]
    if official and official != country.name:
        draft.say("Its full official name is {o}.", "In official use {x} is styled {o}.", o=official)
        draft.note("official_name", _text(official))
    local = read(profile, *field, "local short form").split(" (")[0]
    if local and "/" not in local and local not in (country.name, official):
        draft.say("People there call {x} {o} for short.", "The short local name of {x} is {o}.", o=local)
        draft.note("local_name", _text(local))
    former = _former_names(read(profile, *field, "former"))
    if former:
        draft.say("{x} was formerly known as {o}.", "Former names of {x} include {o}.", o=join_words(former))
        draft.note("former_name", *map(_text, former))
    demonym = re.split(r" or |[,;/(]", read(profile, "People and Society", "Nationality", "adjective"))[0].strip()
    if demonym and country.kind == "country":
        draft.say("The adjective for what comes from there is {o}.", "Things from {x} are described as {o}.", o=demonym)
        draft.note("demonym", _text(demonym))
    draft.publish(MIN_WORDS)


def _former_names(text: str) -> list[str]:
    parts = [part for part in re.split("[;,] ", text) if re.match(r"[A-Z][^()]*$", part)]
    return [part for part in parts if " is the " not in part]


def _capital(graph: Graph, country: Entity, profile: Profile) -> None:
    text = read(profile, "Government", "Capital", "name")
    name = text.split(" (")[0].split(";")[0]
    if not name or re.search(r"\bcapital\)|seat of|,", text):
        return  # several cities share the office
    city = graph.add(
        Entity(
            key=f"{country.key}-capital",
            kind="capital",
            name=name,
            mention=name,
            aliases=spellings(name),
            cluster=country.cluster,
        )
    )
    draft = _draft(graph, country, "capital")
    draft.say("The capital of {x} is {o}.", "{o} is the capital of {x}.", "{x} has {o} as its capital.", o=name)
    draft.note("capital", city)
    at = _COORDINATES.match(read(profile, "Government", "Capital", "geographic coordinates"))
    if at:
        position = f"{at[1]}°{at[2]}' {at[3]}, {at[4]}°{at[5]}' {at[6]}"
        draft.say("{city} is found at {o}.", "The position of {city} is {o}.", city=name, o=position)
        latitude = (int(at[1]) + int(at[2]) / 60) * (1 if at[3] == "N" else -1)
        draft.note("latitude", Value(text=position, number=latitude))
    _add_legislature(draft, profile)
    draft.publish(MIN_WORDS)


def _add_legislature(draft: Draft, profile: Profile) -> None:
    text = read(profile, "Government", "Legislative branch", "legislature name")
    structure = read(profile, "Government", "Legislative branch", "legislative structure")
    found = re.fullmatch(r"([^()/]+?) \(([^()/,;]+)\)", text)
    if found and "ransition" not in text and structure in ("unicameral", "bicameral"):
        draft.say(
            "The legislature of {x}, the {local} ({name}), has {number}.",
            "The laws of {x} are made by the {local} ({name}), a legislature of {number}.",
            name=found[1],
            local=found[2],
            number="a single chamber" if structure == "unicameral" else "two chambers",
        )
        draft.note("legislature", _text(found[2], found[1]))


def _borders(graph: Graph, country: Entity, profile: Profile) -> None:
    neighbours = [graph.entities[key] for key, _ in _neighbours(graph, profile)]
    if not neighbours:
        return
    draft = _draft(graph, country, "borders")
    draft.say(
        "{x} shares land borders with {o}.",
        "The land neighbours of {x} are {o}.",
        "On land, {x} touches {o}.",
        o=join_words([neighbour.mention for neighbour in neighbours]),
    )
    draft.say(
        "That makes {n} in all, so many neighbours lie side by side with {x}.",
        "{x} has {n} such neighbours, counted along the land frontier.",
        n=str(len(neighbours)),
    )
    draft.note("neighbour", *neighbours)
    draft.publish(MIN_WORDS)


def _frontiers(graph: Graph, country: Entity, profile: Profile) -> None:
    draft = _draft(graph, country, "frontiers")
    lengths = dict(_neighbours(graph, profile))
    order = sorted(lengths, key=lambda key: lengths[key])
    if len(order) > 1 and lengths[order[-2]] < CLEARLY * lengths[order[-1]]:
        longest = graph.entities[order[-1]]
        draft.say(
            "The longest land border of {x} is the one with {o}, at {km} km.",
            "Of all land borders of {x}, that with {o} is the longest: {km} km.",
            o=longest.mention,
            km=f"{lengths[order[-1]]:,.0f}",
        )
        draft.note("longest_border", longest)
    if len(order) > 2 and lengths[order[0]] < CLEARLY * lengths[order[1]]:
        shortest = graph.entities[order[0]]
        draft.say(
            "The shortest land border of {x} is the one with {o}.",
            "It is with {o} that {x} shares its shortest land border.",
            o=shortest.mention,
        )
        draft.note("shortest_border", shortest)
    if read(profile, "Geography", "Land boundaries", "total").startswith("0"):
        draft.say("{x} has no land border with any other country.", "No other country touches {x} on land.")
    coast = re.match(r"([\d,.]+) km", read(profile, "Geography", "Coastline"))
    if coast and coast[1] == "0":
        draft.say("{x} has no coastline at all.", "{x} is landlocked and has no coastline.")
    elif coast:
        draft.say("The coastline of {x} measures {o}.", "The coastline of {x} is {o} long.", o=coast[0])
        draft.note("coastline", _measure(coast[0]))
    draft.publish(MIN_WORDS)


def _neighbours(graph: Graph, profile: Profile) -> Iterator[tuple[str, float]]:
    text = read(profile, "Geography", "Land boundaries", "border countries")
    for part in re.split(r"; |(?<=km), ", re.sub(r"\([^()]*\)", "", text)):
        found = _BORDER.match(part.strip())
        other = graph.find(found[1], "country", "territory") if found else None
        if found and other:
            yield other.key, _number(found[2])


def _heights(graph: Graph, country: Entity, profile: Profile) -> None:
    draft = _draft(graph, country, "heights")
    highest = _point(profile, "highest point")
    if highest:
        draft.say(
            "The highest point of {x} is {o}, which rises to {m} m.",
            "At {m} m, {o} is the highest point of {x}.",
            "Nothing in {x} stands above its highest point, {o}, which reaches {m} m.",
            o=highest[0],
            m=highest[1],
        )
        draft.note("highest_point", _text(highest[0], *highest[0].split("/")))
        draft.note("height", _measure(f"{highest[1]} m"))
    lowest = _point(profile, "lowest point")
    if lowest:
        draft.say(
            "The lowest ground of {x} is {o} ({m} m).",
            "The lowest ground of {x}, at {m} m, is {o}.",
            o=lowest[0],
            m=lowest[1],
        )
        if lowest[1] != "0":  # many countries end at the same sea
            draft.note("lowest_point", _text(lowest[0]))
    mean = re.match(r"[\d,]+ m\b", read(profile, "Geography", "Elevation", "mean elevation"))
    if mean:
        draft.say("On average {x} lies {o} above the sea.", "The mean elevation of {x} is {o}.", o=mean[0])
    draft.publish(MIN_WORDS)


def _point(profile: Profile, name: str) -> tuple[str, str] | None:
    """Return name and height of the highest or lowest point; None where what stands there is no name."""
    found = _HEIGHT.match(read(profile, "Geography", "Elevation", name))
    point = re.sub(r" ?\(.*", "", found[1]).strip(" ,;") if found else ""
    is_name = re.fullmatch(r"[^\W\d_a-z][^,;]*", point) and not re.search(r"\b(unnamed|range|sides?|dunes)\b", point)
    return (point, found[2]) if found and is_name else None


def _size(graph: Graph, country: Entity, profile: Profile) -> None:
    areas = [_area(profile, field) for field in ("total ", "land", "water")]
    if not areas[0]:
        return
    draft = _draft(graph, country, "size")
    total, land, water = (f"{area:,.10g} square kilometres" for area in areas)
    draft.say("The total area of {x} is {o}.", "In all, the total area that {x} covers is {o}.", o=total)
    draft.note("area", Value(text=total, number=areas[0]))
    if areas[1] and areas[2]:
        draft.say(
            "Of this, {land} are land and {water} are water.",
            "Land makes up {land} of it, and water {water}.",
            land=land,
            water=water,
        )
    draft.say("This is the size of {x} as given in square measure.", "So large is {x}, measured within its borders.")
    draft.publish(MIN_WORDS)


def _area(profile: Profile, field: str) -> float:
    found = re.match(r"([\d,.]+)( million)? sq km", read(profile, "Geography", "Area", field))
    return _number(found[1]) * (1e6 if found[2] else 1) if found else 0.0


def _anthem(graph: Graph, country: Entity, profile: Profile) -> None:
    field = "Government", "National anthem(s)"
    title = _ANTHEM.match(read(profile, *field, "title"))
    if not title:
        return
    draft = _draft(graph, country, "anthem")
    draft.say(
        'The national anthem of {x} is "{o}"{english}.',
        '"{o}"{english} is the national anthem of {x}.',
        '{x} has "{o}"{english} for its national anthem.',
        o=title[1],
        english=f' ("{title[2]}")' if title[2] else "",
    )
    draft.note("anthem", _text(title[1], title[2] or ""))
    writers = read(profile, *field, "lyrics/music").split("/")
    lyricist, composer = map(person_name, writers) if len(writers) == 2 else ("", "")
    if lyricist and lyricist != composer:
        draft.say("The words were written by {o}.", "{o} wrote the lyrics.", o=lyricist)
        draft.note("lyricist", _text(lyricist))
    if composer:
        draft.say("{o} composed the music.", "The music was composed by {o}.", o=composer)
        draft.note("composer", _text(composer))
    adopted = re.search(r"\badopted (?:in )?(\d{4})\b", read(profile, *field, "history"))
    if adopted:
        draft.say("{x} adopted this anthem in {o}.", "The anthem was adopted by {x} in {o}.", o=adopted[1])
        draft.note("anthem_year", Value(text=adopted[1], number=float(adopted[1])))
    draft.publish(MIN_WORDS)


def _independence(graph: Graph, country: Entity, profile: Profile) -> None:
    draft = _draft(graph, country, "independence")
    found = _INDEPENDENCE.match(read(profile, "Government", "Independence"))
    if found:
        ruler = graph.find(found[3].strip(), "country")
        name = ruler.mention if ruler else f"the {found[3]}" if found[3] == "Soviet Union" else ""
        draft.say(
            "{x} became independent{whom} on {o}.",
            "The independence of {x}{whom} dates from {o}.",
            o=found[1],
            whom=f" from {name}" if name else "",
        )
        draft.note("independence_date", Value(text=found[1], aliases=_dates(found[1]), number=float(found[2])))
        if ruler:
            draft.note("independence_from", ruler)
    holiday = _HOLIDAY.match(read(profile, "Government", "National holiday"))
    if holiday and not re.search(r"(?i)birthday|king|queen|emperor|throne", holiday[1]):  # those go with the ruler
        draft.say(
            "The national holiday of {x} is {name}, kept every year on {o}{since}.",
            "Each year on {o} the country celebrates {name}{since}, the national holiday of {x}.",
            name=holiday[1],
            o=holiday[2],
            since=f", recalling {holiday[3]}" if holiday[3] else "",
        )
        draft.note("holiday", _text(holiday[1]))
        draft.note("holiday_date", Value(text=holiday[2], aliases=_dates(holiday[2])))
    draft.publish(MIN_WORDS)


def _codes(graph: Graph, country: Entity, profile: Profile) -> None:
    draft = _draft(graph, country, "codes")
    domain = re.match(r"(\.[a-z]{2})\b", read(profile, "Communications", "Internet country code"))
    if domain:
        draft.say(
            "Internet addresses of {x} end in the country code {o}.",
            "The internet country code of {x} is {o}.",
            o=domain[1],
        )
        draft.note("domain", _text(domain[1], domain[1][1:]))
    prefix = read(profile, "Transportation", "Civil aircraft registration country code prefix")
    if re.fullmatch(r"[A-Z0-9]{1,3}", prefix):
        draft.say(
            "Civil aircraft of {x} carry the registration prefix {o}.",
            "The registration prefix of civil aircraft from {x} is {o}.",
            o=prefix,
        )
        draft.note("aircraft_prefix", _text(prefix))
    money = _CURRENCY.match(read(profile, "Economy", "Exchange rates", "Currency"))
    if money:
        draft.say(
            "The money of {x}, the {name}, has the currency code {o}.",
            "The money in which {x} gives its prices is the {name} (currency code {o}).",
            name=money[1],
            o=money[2],
        )
        draft.note("currency", _text(money[1], *_singulars(money[1])))
        draft.note("currency_code", _text(money[2]))
    draft.publish(MIN_WORDS)


def _symbols(graph: Graph, country: Entity, profile: Profile) -> None:
    symbols = read(profile, "Government", "National symbol(s)").removeprefix("a ")
    colours = read(profile, "Government", "National color(s)")
    if not symbols or not colours or re.search(r"[(;]", symbols + colours):
        return
    draft = _draft(graph, country, "symbols")
    draft.say(
        "Among the emblems of {x}, the national symbol is the {o}.", "The national symbol of {x} is the {o}.", o=symbols
    )
    if "," not in symbols:
        draft.note("symbol", _text(symbols))
    draft.say(
        "The national colours of {x} are {o}.",
        "As national colours {x} uses {o}.",
        o=join_words(colours.split(", ")),
    )
    draft.publish(MIN_WORDS)


def _draft(graph: Graph, country: Entity, topic: str) -> Draft:
    return Draft(graph, country, topic, called=country.mention)


def _text(text: str, *aliases: str) -> Value:
    return Value(text=text, aliases=spellings(text, filter(None, aliases)))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _measure(text: str) -> Value:
    """Return '2,908 m' or '998 km' with its other spellings."""
    number, unit = text.split(" ")
    words = {"m": ["metres", "meters"], "km": ["kilometres", "kilometers"]}[unit]
    aliases = (*(f"{number} {word}" for word in words), f"{number}{unit}", number)
    return Value(text=text, aliases=aliases, number=_number(number))


def _dates(text: str) -> tuple[str, ...]:
    """Return '5 July 1962' in other orders."""
    day, month, *year = text.split(" ")
    tail = f", {year[0]}" if year else ""
    return (f"{month} {day}{tail}", f"{day} {month}{tail}") if year else (f"{month} {day}",)


def _singulars(plural: str) -> list[str]:
    """Return other names of money in the plural: 'dinars', 'dinar' and 'Algerian dinar' for 'Algerian dinars'."""
    last = plural.split(" ")[-1]
    return [plural.removesuffix("s"), last, last.removesuffix("s")]


TOPICS: tuple[Callable[[Graph, Entity, Profile], None], ...] = (
    _names,
    _capital,
    _borders,
    _frontiers,
    _heights,
    _size,
    _anthem,
    _independence,
    _codes,
    _symbols,
)
"""Writes one passage each, where the Factbook says enough."""
