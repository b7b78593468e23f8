"""Gold recall on the shipped corpus `facts`: the question as the query, against the right query of every hop.

A question counts as found when all its gold passages are among the best `--top-k` of their query. For the question as
the query that is one search; for the right queries it is one search for each lookup. The first shows how far a system
comes that searches once, the second how far one can come that searches well.

    python benchmarks/corpus_hops.py [--split test] [--top-k 3] [--misses 10]
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this folder, in which `retrieval` would be another benchmark

from retrieval.bm25 import Bm25Index
from retrieval.corpora import corpus_path
from srpo_envs.tasks.rows import read_rows

Row = dict[str, Any]


def found_by_question(index: Bm25Index, row: Row, top_k: int) -> bool:
    """Say whether one search for the question finds all gold passages."""
    (passages,) = index.search([row["question"]], top_k)
    return set(row["gold_passage_ids"]) <= {passage.id for passage in passages}


def missed_queries(index: Bm25Index, row: Row, top_k: int) -> list[tuple[str, str]]:
    """Return the right queries that do not find their gold passage, each with its id."""
    queries = list(itertools.chain.from_iterable(row["queries"]))
    answers = index.search(queries, top_k)
    gold = zip(queries, row["gold_passage_ids"], answers, strict=True)
    return [(query, key) for query, key, passages in gold if key not in {passage.id for passage in passages}]


def table(index: Bm25Index, rows: Iterable[Row], top_k: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return a Markdown table of the recalls by type and hops, and every miss of a right query."""
    results: dict[tuple[int, str], list[tuple[bool, bool]]] = defaultdict(list)
    misses = []
    for row in rows:
        missed = missed_queries(index, row, top_k)
        results[row["hops"], row["type"]].append((found_by_question(index, row, top_k), not missed))
        misses += missed
    lines = ["| hops | type | questions | question as query | right queries |", "|---|---|---|---|---|"]
    for (hops, kind), pairs in sorted(results.items()):
        by_question, by_queries = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        lines.append(f"| {hops} | {kind} | {len(pairs)} | {by_question:.3f} | {by_queries:.3f} |")
    return lines, misses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("train", "test"), help="one split only (default: both)")
    parser.add_argument("--top-k", type=int, default=3, help="passages per search (default: %(default)s)")
    parser.add_argument("--misses", type=int, default=0, help="right queries without their gold passage to print")
    options = parser.parse_args()
    index = Bm25Index.from_corpus(corpus_path("facts"))
    data = Path(str(files("srpo_envs"))) / "tasks" / "data"
    for split in (options.split,) if options.split else ("train", "test"):
        lines, misses = table(index, read_rows(data / f"facts_{split}.jsonl.gz"), options.top_k)
        print(f"\n{split}, {index.num_passages:,} passages, gold recall@{options.top_k}\n", *lines, sep="\n")
        print(*(f"missed {key}: {query}" for query, key in misses[: options.misses]), sep="\n")


if __name__ == "__main__":
    main()
