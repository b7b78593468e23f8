"""BM25 without Java, ranked as Lucene ranks: the order of documents and their scores are those of Anserini.

Terms are those of Lucene's English analysis (`retrieval.bm25.analysis`). A document scores, summed over the terms of
the query with their number of repeats in it,

    repeats * idf - repeats * idf / (1 + tf * norm),    idf = ln(1 + (N - df + 0.5) / (df + 0.5)),
    norm = 1 / (k1 * (1 - b + b * length / average length)),

in single precision and in this order of operations, where length went through Lucene's one-byte code and N counts the
documents that have a term. Documents of equal score are ordered by id; only then are scores rounded to four decimals,
as Anserini reports them. (It also moves those apart by millionths that are equal then, which is left out here.)

No library is used because none gets there. With bm25s, even when fed Lucene's own terms, half of all queries have
another order among the first ten documents: it knows neither the coded lengths nor the order of ties. tantivy splits
and stems words differently and fixes k1 and b. The scorer is a page of NumPy::

    Bm25Index.build("corpus.jsonl", "indexes/bm25")
    Bm25Index.open("indexes/bm25").search(["capital of Peru"], top_k=3)
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrieval.bm25.analysis import analyze
from retrieval.bm25.build import (
    BLOCK_SIZE,
    ID_RANKS_FILE,
    KIND,
    VERSION,
    build_bm25_index,
    check_settings,
    make_manifest,
    rank_ids,
)
from retrieval.bm25.postings import Array, Inverter, Postings
from retrieval.corpus import Corpus, contents_of, corpus_digest, iter_passages
from retrieval.index_dir import Manifest, PassageStore, open_array, open_manifest
from retrieval.progress import OnProgress
from srpo_envs.search import Passage

_SLACK = 1 - 1e-6
"""Bounds are lowered by more than rounding to single precision can raise a score."""


class Bm25Index:
    """A corpus that is searched by BM25; from `build`, `open` or `from_corpus`. Any number of threads may search it.

    Args:
        postings: The inverted index.
        passages: The corpus.
        id_ranks: [num_passages] int32, the place of each passage's id among the sorted ids.
        manifest: Of the index; its settings hold k1 and b.
    """

    def __init__(self, postings: Postings, passages: Sequence[Passage], id_ranks: Array, manifest: Manifest) -> None:
        self.num_passages = manifest.num_passages
        """Size of the corpus."""
        self.fingerprint = manifest.fingerprint
        """16 hexadecimal digits that differ where the corpus, k1 or b does."""
        self._postings = postings
        self._passages = passages
        self._id_ranks = id_ranks
        self._num_with_terms = int(np.count_nonzero(postings.lengths))
        self._length_codes = encode_lengths(postings.lengths)
        num_occurrences = int(postings.lengths.sum(dtype=np.int64))
        average_length = max(num_occurrences, 1) / max(self._num_with_terms, 1)
        self._norm_of_code = _norms(average_length, manifest.settings["k1"], manifest.settings["b"])

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        path: str | os.PathLike[str],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        on_progress: OnProgress | None = None,
        block_size: int = BLOCK_SIZE,
    ) -> Bm25Index:
        """Build an index on disk and open it.

        Args:
            corpus: A corpus file, or passages.
            path: Folder to write; an index that is there is replaced at the end.
            k1: Saturation of term counts, at least 0.
            b: Weight of the passage's length, from 0 to 1.
            on_progress: Called with "reading" and "merging" and how far they are.
            block_size: Terms inverted in memory at once; changes nothing in the index.

        Raises:
            CorpusError: the corpus cannot be read.
            SearchIndexError: something else is at `path`, or another build is writing there.
            ConfigError: `k1` or `b` is out of range.
        """
        build_bm25_index(corpus, path, k1=k1, b=b, on_progress=on_progress, block_size=block_size)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bm25Index:
        """Open an index folder; its files are memory-mapped and read as searches need them.

        Raises:
            SearchIndexError: no BM25 index there, one of another version, or a damaged one.
        """
        folder = Path(path)
        manifest = open_manifest(folder, KIND, VERSION)
        return cls(Postings.load(folder), PassageStore.open(folder), open_array(folder / ID_RANKS_FILE), manifest)

    @classmethod
    def from_corpus(cls, corpus: Corpus, *, k1: float = 0.9, b: float = 0.4) -> Bm25Index:
        """Build an index in memory, for a small corpus.

        Raises:
            CorpusError: the corpus cannot be read.
            ConfigError: `k1` or `b` is out of range.
        """
        check_settings(k1, b)
        passages = list(iter_passages(corpus))
        inverter = Inverter()
        for passage in passages:
            inverter.add(analyze(contents_of(passage)))
        manifest = make_manifest(len(passages), corpus_digest(passages), k1, b)
        return cls(inverter.finish(), passages, rank_ids([passage.id for passage in passages]), manifest)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the best passages of each query, as `srpo_envs.search.Retriever` promises; all share a term with it.

        Raises:
            ValueError: `top_k` below 1, or the index was closed.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        return [self._search(query, top_k) for query in queries]

    def close(self) -> None:
        """Release the passages; a later search raises."""
        if isinstance(self._passages, PassageStore):
            self._passages.close()

    def _search(self, query: str, top_k: int) -> list[Passage]:
        documents, scores = self._score(self._clauses(query), top_k)
        best = _best(scores, documents, self._id_ranks, top_k)
        return [
            dataclasses.replace(self._passages[number], score=round(score, 4))
            for number, score in zip(documents[best].tolist(), scores[best].tolist(), strict=True)
        ]

    def _clauses(self, query: str) -> list[_Clause]:
        """Return the terms of a query that some document has, rare ones first."""
        clauses = []
        for term, num_repeats in Counter(analyze(query)).items():
            if entries := self._postings.find(term):
                documents, frequencies = entries
                odds = (self._num_with_terms - len(documents) + 0.5) / (len(documents) + 0.5)
                weight = np.float32(num_repeats) * np.float32(math.log(1 + odds))
                clauses.append(_Clause(weight, documents, frequencies))
        return sorted(clauses, key=lambda clause: len(clause.documents))

    def _score(self, clauses: Sequence[_Clause], top_k: int) -> tuple[Array, Array]:
        """Return documents and their float32 scores, among them the first `top_k`.

        As soon as the frequent terms that are left cannot lift a new document into the first `top_k`, only documents
        that still can get there are looked up in them.
        """
        most_left = np.cumsum([0.0, *(clause.weight for clause in reversed(clauses))])[::-1]
        totals = np.zeros(self.num_passages)
        found = np.empty(0, np.int32)
        needed, num_read = 0.0, 0
        for clause in clauses:
            needed = _kth_largest(totals[found], top_k) * _SLACK
            if most_left[num_read] < needed:
                break
            before = totals[clause.documents]
            totals[clause.documents] = before + self._contributions(clause)
            found = np.concatenate([found, clause.documents[before == 0]])
            num_read += 1
        if num_read < len(clauses):
            found = found[totals[found] + most_left[num_read] >= needed]
        for clause in clauses[num_read:]:
            clause = clause.among(found)
            totals[clause.documents] += self._contributions(clause)
        return found, totals[found].astype(np.float32)

    def _contributions(self, clause: _Clause) -> Array:
        """Return what a term adds to the score of each of its documents, float32 and never 0."""
        norms = self._norm_of_code[self._length_codes[clause.documents]]
        unsaturated = clause.weight / (np.float32(1) + clause.frequencies.astype(np.float32) * norms)
        contributions: Array = np.maximum(clause.weight - unsaturated, np.finfo(np.float32).tiny)
        return contributions


@dataclass(frozen=True, slots=True)
class _Clause:
    """A term of a query."""

    weight: np.float32
    """Repeats times idf: more than it can add to any score."""
    documents: Array
    """Those that have the term, ascending."""
    frequencies: Array
    """How often they have it."""

    def among(self, documents: Array) -> _Clause:
        """Return the clause of only those documents that are also among the given ones."""
        places = np.searchsorted(self.documents, documents)
        places = places[self.documents.take(places, mode="clip") == documents]
        return _Clause(self.weight, self.documents[places], self.frequencies[places])


def encode_lengths(lengths: Array) -> Array:
    """Return the codes of document lengths, uint8: Lucene's `SmallFloat.intToByte4`, which rounds down."""
    codes = np.searchsorted(_LENGTH_OF_CODE, np.arange(lengths.max(initial=0) + 1), side="right") - 1
    return codes.astype(np.uint8)[lengths]


def _decode_length(code: int) -> int:
    """Return the length a code stands for: exact up to 39, then a float of 4 significant bits."""
    free = 24  # codes that a 32-bit length leaves unused, given to the smallest lengths
    if code < free:
        return code
    exponent, mantissa = divmod(code - free, 8)
    return free + (mantissa if exponent == 0 else (8 + mantissa) << (exponent - 1))


_LENGTH_OF_CODE = np.array([_decode_length(code) for code in range(256)])


def _norms(average_length: float, k1: float, b: float) -> Array:
    """Return [256] float32, BM25's norm of every length code, in Lucene's order of operations."""
    k1_, b_, average = np.float32(k1), np.float32(b), np.float32(average_length)
    with np.errstate(divide="ignore"):  # k1 = 0: a term counts fully, however often it occurs
        relative = b_ * _LENGTH_OF_CODE.astype(np.float32) / average
        return np.float32(1) / (k1_ * ((np.float32(1) - b_) + relative))


def _kth_largest(values: Array, k: int) -> float:
    """Return the k-th largest of positive values, 0 where there are fewer."""
    return float(np.partition(values, len(values) - k)[len(values) - k]) if len(values) >= k else 0.0


def _best(scores: Array, documents: Array, id_ranks: Array, top_k: int) -> Array:
    """Return the places of the `top_k` best, in order: by score, equal ones by id."""
    places = np.flatnonzero(scores >= _kth_largest(scores, top_k))
    return places[np.lexsort((id_ranks[documents[places]], -scores[places]))[:top_k]]
