"""The shipped corpora: what `facts` promises holds for every passage and question of it."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import retrieval.corpora
import srpo_envs
from retrieval.bm25 import Bm25Index
from retrieval.corpora import corpus_path, list_corpora
from retrieval.corpus import read_corpus
from srpo_envs.errors import UnknownIdError
from srpo_envs.grading.qa_match import normalise_text
from srpo_envs.search import Passage
from srpo_envs.tasks.rows import read_rows

FOLDER = Path(retrieval.corpora.__file__).parent / "facts"
DATA = Path(srpo_envs.__file__).parent / "tasks" / "data"
SPLITS = ("train", "test")
HOPS = {"single": (1,), "bridge": (2, 3), "comparison": (1,), "bridge_comparison": (2,)}
TEMPLATE_CAP = 0.12
VOLATILE = re.compile(
    r"(?i)\b(prime minister|minister|incumbent|head of state|population|inhabitants|gdp|inflation|unemployment|"
    r"per capita|per cent|percent|currently|nowadays|as of|est\.|years old|growth|rate)\b|%|\bpresident\b"
)


@pytest.fixture(scope="module")
def passages() -> dict[str, Passage]:
    return {passage.id: passage for passage in read_corpus(corpus_path("facts"))}


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict[str, Any]]]:
    return {split: read_rows(DATA / f"facts_{split}.jsonl.gz") for split in SPLITS}


@pytest.fixture(scope="module")
def all_rows(rows) -> list[dict[str, Any]]:
    return [row for split in SPLITS for row in rows[split]]


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return json.loads((FOLDER / "MANIFEST.json").read_text(encoding="utf-8"))


def share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


# --- names and files ----------------------------------------------------------------------------------------------


def test_corpora_are_found_by_name():
    assert "facts" in list_corpora()
    assert corpus_path("facts") == FOLDER / "passages.jsonl.gz"
    with pytest.raises(UnknownIdError, match=r"no corpus 'fact'.*did you mean 'facts'"):
        corpus_path("fact")


def test_the_files_are_those_of_the_manifest(manifest, passages, rows):
    assert manifest["num_passages"] == len(passages)
    for split in SPLITS:
        assert manifest["questions"][split] == Counter(f"{row['type']}-{row['hops']}" for row in rows[split])
    root = Path(srpo_envs.__file__).parents[1]
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest, name


def test_the_notice_names_every_source(manifest):
    notice = (FOLDER / "NOTICE.md").read_text(encoding="utf-8")
    assert len(manifest["sources"]) == 3
    for source in manifest["sources"]:
        assert source["name"] in notice
        assert source["version"] in notice
    for phrase in ("public domain", "WordNet 3.0 Copyright 2006 by Princeton University", "Lukasz Mentel"):
        assert phrase in notice


def test_it_is_large_enough_and_small_enough_to_ship(passages, rows):
    assert len(passages) >= 5_000
    assert sum(map(len, rows.values())) >= 2_000
    assert corpus_path("facts").stat().st_size < 3 << 20
    assert sum((DATA / f"facts_{split}.jsonl.gz").stat().st_size for split in SPLITS) < 1 << 20


# --- passages -----------------------------------------------------------------------------------------------------


def test_passages_are_short_and_titled(passages):
    sizes = sorted(len(passage.text.split()) for passage in passages.values())
    assert sizes[0] >= 10
    assert sizes[-1] <= 70
    assert 20 <= sizes[len(sizes) // 2] <= 60
    assert all(passage.title for passage in passages.values())
    assert len({passage.text for passage in passages.values()}) > 0.999 * len(passages)


def test_no_passage_speaks_of_what_changes(passages):
    line = "In the line of presidents of the United States"
    found = {key: VOLATILE.search(passage.text) for key, passage in passages.items() if line not in passage.text}
    assert {key: match[0] for key, match in found.items() if match} == {}


def test_regions_are_called_as_a_sentence_calls_them(passages):
    bare = re.compile(r"\bmaps? of (?:Antarctic|Arctic|Middle|Political|AsiaEurope)")
    assert not [passage.id for passage in passages.values() if bare.search(passage.text)]


def test_no_markup_is_left(passages):
    broken = [key for key, passage in passages.items() if re.search(r"[<>{}]|&\w+;|\s\s", passage.text)]
    assert broken == []


# --- questions ----------------------------------------------------------------------------------------------------


def test_questions_are_whole_and_unlike(all_rows, passages):
    assert len({row["id"] for row in all_rows}) == len({row["question"] for row in all_rows}) == len(all_rows)
    for row in all_rows:
        assert row["hops"] in HOPS[row["type"]], row
        assert row["hops"] == len(row["queries"]), row
        assert len(list(itertools.chain.from_iterable(row["queries"]))) == len(row["gold_passage_ids"]), row
        assert len(set(row["gold_passage_ids"])) == len(row["gold_passage_ids"]), row
        assert set(row["gold_passage_ids"]) <= passages.keys(), row
        assert all(normalise_text(answer) for answer in row["golden_answers"]), row


def test_every_kind_and_number_of_hops_is_there(rows):
    for split in SPLITS:
        counts = Counter((row["type"], row["hops"]) for row in rows[split])
        assert set(counts) == {(kind, hops) for kind, numbers in HOPS.items() for hops in numbers}
        assert min(counts.values()) >= 100


def test_the_answer_stands_in_the_last_gold_passage(all_rows, passages):
    for row in all_rows:
        last = row["gold_passage_ids"][-len(row["queries"][-1]) :]
        assert any(row["golden_answers"][0] in passages[key].text for key in last), row


def test_the_question_and_the_earlier_passages_keep_the_answer_back(all_rows, passages):
    for row in all_rows:
        if row["type"] in ("single", "bridge"):
            answer = f" {normalise_text(row['golden_answers'][0])} "
            earlier = [passages[key].text for key in row["gold_passage_ids"][:-1]]
            for text in [row["question"], *(earlier if len(answer) > 4 else [])]:
                assert answer not in f" {normalise_text(text)} ", row


def test_a_comparison_asks_for_one_of_the_two_it_names(all_rows):
    for row in all_rows:
        if row["type"] == "comparison":
            assert len(row["queries"][0]) == 2
            assert row["golden_answers"][0] in row["subjects"], row
        if row["type"] == "bridge_comparison":
            assert [len(turn) for turn in row["queries"]] == [2, 2]
            assert row["golden_answers"][0] in row["bridges"], row


def test_comparisons_do_not_favour_a_place(all_rows):
    compared = [row for row in all_rows if row["type"] == "comparison"]
    first = sum(row["golden_answers"][0] == row["subjects"][0] for row in compared)
    assert 0.4 < first / len(compared) < 0.6


def test_splits_share_no_bridge_no_subject_and_no_gold_passage(rows):
    for field in ("bridges", "gold_passage_ids", "subjects"):
        train, test = ({item for row in rows[split] for item in row[field]} for split in SPLITS)
        assert train, field
        assert test, field
        assert not train & test, field


def test_bridges_are_not_named_in_the_question(all_rows):
    for row in all_rows:
        for bridge in row["bridges"]:
            assert f" {normalise_text(bridge)} " not in f" {normalise_text(row['question'])} ", row


def test_no_template_and_no_last_relation_is_overused(rows):
    for split in SPLITS:
        for field in (lambda row: row["template"], lambda row: row["template"].split(">")[-1]):
            (name, count), *_ = Counter(map(field, rows[split])).most_common(1)
            assert count <= TEMPLATE_CAP * len(rows[split]), name


def test_the_docs_tell_the_sizes(passages, rows):
    docs = Path(srpo_envs.__file__).parents[1] / "docs" / "corpus.md"
    if not docs.is_file():
        pytest.skip("installed without the docs")
    text = docs.read_text(encoding="utf-8")
    assert f"{len(passages):,} short passages and {sum(map(len, rows.values())):,} questions" in text
    for (kind, hops), count in Counter((row["type"], row["hops"]) for row in rows["train"]).items():
        test = sum((row["type"], row["hops"]) == (kind, hops) for row in rows["test"])
        assert f"| `{kind}` | {hops} | {count:,} | {test:,} |" in text
    (example,) = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)
    assert json.loads(example) in rows["test"]


# --- search -------------------------------------------------------------------------------------------------------


def test_several_hops_take_several_searches(rows):
    index = Bm25Index.from_corpus(corpus_path("facts"))
    sample = rows["test"][::3]

    def finds(query: str, gold: set[str]) -> bool:
        (found,) = index.search([query], 3)
        return gold <= {passage.id for passage in found}

    by_question: dict[int, list[bool]] = {1: [], 2: [], 3: []}
    by_queries: dict[int, list[bool]] = {1: [], 2: [], 3: []}
    for row in sample:
        queries = list(itertools.chain.from_iterable(row["queries"]))
        pairs = zip(queries, row["gold_passage_ids"], strict=True)
        by_queries[row["hops"]].append(all(finds(query, {key}) for query, key in pairs))
        if row["type"] != "comparison":  # names both: two searches at once, but no second turn
            by_question[row["hops"]].append(finds(row["question"], set(row["gold_passage_ids"])))
    assert share(by_question[1]) > 0.9
    assert share(by_question[2]) < 0.05
    assert share(by_question[3]) < 0.02
    assert min(map(share, by_queries.values())) > 0.95
