"""An inverted index: for each term, the documents that hold it and how often; built in blocks and merged on disk.

A block is inverted in memory, so what a build needs is bounded by the size of a block and the vocabulary, not by the
corpus. Blocks are merged by moving each one's entries, already sorted, to their place in the final arrays::

    blocks = [Inverter(), ...]          # inverter.add(terms of a document), then inverter.finish().save(folder)
    merge(blocks, folder)               # blocks hold consecutive documents
    Postings.load(folder).find("lima")  # documents and frequencies
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, overload

import numpy as np

from retrieval.index_dir import REBUILD, open_array
from srpo_envs.errors import SearchIndexError

Array = np.ndarray[Any, Any]

_TERMS_FILE = "terms.npy"
_TERM_ENDS_FILE = "terms.offsets.npy"
_BEGINS_FILE = "postings.offsets.npy"
_DOCUMENTS_FILE = "postings.documents.npy"
_FREQUENCIES_FILE = "postings.frequencies.npy"
_LENGTHS_FILE = "lengths.npy"


class TermList(Sequence[str]):
    """Sorted terms in one array of bytes; finding one is a binary search, so a memory-mapped list opens at once.

    Args:
        letters: uint8, the terms in UTF-8, one after the other; sorted by code point, which is the order of the bytes.
        offsets: [num_terms + 1] int64, where each term begins in `letters`, and where the last one ends.
    """

    def __init__(self, letters: Array, offsets: Array) -> None:
        self.letters = letters
        self.offsets = offsets

    @classmethod
    def of(cls, terms: Sequence[str]) -> TermList:
        """Pack sorted terms."""
        encoded = [term.encode() for term in terms]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(term) for term in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        return self.letters[self.offsets[number] : self.offsets[number + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        letters = self.letters.tobytes()
        for begin, end in itertools.pairwise(self.offsets.tolist()):
            yield letters[begin:end].decode()

    def find(self, term: str) -> int | None:
        """Return the number of a term, None where it is not in the list."""
        number = bisect_left(self, term)
        return number if number < len(self) and self[number] == term else None


@dataclass(frozen=True, kw_only=True)
class Postings:
    """An inverted index of documents that are numbered from 0, in memory or memory-mapped; P entries in all."""

    terms: TermList
    """All terms, sorted."""
    begins: Array
    """[num_terms + 1] int64, where each term's entries begin, and where the last one's end."""
    documents: Array
    """[P] int32, the documents that hold a term, ascending within it."""
    frequencies: Array
    """[P] unsigned, as wide as it takes: how often they hold it."""
    lengths: Array
    """[num_documents] int32, terms in each document."""

    def find(self, term: str) -> tuple[Array, Array] | None:
        """Return documents and frequencies of a term, None where no document holds it."""
        number = self.terms.find(term)
        if number is None:
            return None
        span = slice(self.begins[number], self.begins[number + 1])
        return self.documents[span], self.frequencies[span]

    def save(self, folder: Path) -> None:
        """Write all arrays into a folder."""
        np.save(folder / _DOCUMENTS_FILE, self.documents)
        np.save(folder / _FREQUENCIES_FILE, self.frequencies)
        _save_frame(folder, self.terms, self.begins, self.lengths)

    @classmethod
    def load(cls, folder: Path) -> Postings:
        """Open the arrays of a folder, memory-mapped.

        Raises:
            SearchIndexError: one is missing, damaged, or does not fit the others.
        """
        postings = cls(
            terms=TermList(open_array(folder / _TERMS_FILE), open_array(folder / _TERM_ENDS_FILE)),
            begins=open_array(folder / _BEGINS_FILE),
            documents=open_array(folder / _DOCUMENTS_FILE),
            frequencies=open_array(folder / _FREQUENCIES_FILE),
            lengths=open_array(folder / _LENGTHS_FILE),
        )
        if not postings._is_consistent():
            raise SearchIndexError(f"{str(folder)!r}: the files of the index do not fit each other; {REBUILD}")
        return postings

    def _is_consistent(self) -> bool:
        return (
            len(self.begins) == len(self.terms.offsets) >= 1
            and self.terms.offsets[-1] == len(self.terms.letters)
            and self.begins[-1] == len(self.documents) == len(self.frequencies)
            and self.lengths.min(initial=0) >= 0
        )


class Inverter:
    """Takes in documents in order and turns them into postings; holds 4 bytes a term occurrence meanwhile."""

    def __init__(self) -> None:
        self._number_of: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._occurrences = array("i")
        self._lengths = array("i")

    def add(self, terms: Sequence[str]) -> None:
        """Append a document."""
        self._occurrences.extend(map(self._number_of.__getitem__, terms))
        self._lengths.append(len(terms))

    @property
    def num_occurrences(self) -> int:
        """Terms of all documents so far."""
        return len(self._occurrences)

    @property
    def num_documents(self) -> int:
        """Documents so far."""
        return len(self._lengths)

    def finish(self) -> Postings:
        """Return the postings of all documents so far."""
        terms = sorted(self._number_of)
        place_of = np.empty(len(terms), np.int64)
        place_of[[self._number_of[term] for term in terms]] = np.arange(len(terms))
        lengths = np.array(self._lengths, np.int32)
        keys = place_of[np.frombuffer(self._occurrences, np.int32)] * len(lengths)
        keys += np.repeat(np.arange(len(lengths)), lengths)
        keys.sort()
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        frequencies = np.diff(firsts, append=len(keys))
        places, documents = np.divmod(keys[firsts], len(lengths))
        return Postings(
            terms=TermList.of(terms),
            begins=np.searchsorted(places, np.arange(len(terms) + 1)),
            documents=documents.astype(np.int32),
            frequencies=frequencies.astype(np.min_scalar_type(frequencies.max(initial=0))),
            lengths=lengths,
        )


def merge(blocks: Sequence[Postings], folder: Path) -> None:
    """Write the postings of consecutive blocks of documents, as if they had been inverted together.

    Args:
        blocks: At least one; the documents of each are numbered from 0.
        folder: Where `Postings.load` will find the result.
    """
    terms, places = _merge_terms([block.terms for block in blocks])
    sizes = np.zeros(len(terms), np.int64)
    for block, place in zip(blocks, places, strict=True):
        sizes[place] += np.diff(block.begins)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    _save_frame(folder, terms, begins, np.concatenate([block.lengths for block in blocks]))
    width = np.result_type(*(block.frequencies.dtype for block in blocks))
    documents = _new_array(folder / _DOCUMENTS_FILE, np.dtype(np.int32), begins[-1])
    frequencies = _new_array(folder / _FREQUENCIES_FILE, width, begins[-1])
    next_free, num_before = begins[:-1].copy(), 0
    for block, place in zip(blocks, places, strict=True):
        shifts = np.repeat(next_free[place] - block.begins[:-1], np.diff(block.begins))
        targets = shifts + np.arange(len(shifts))
        documents[targets] = block.documents + np.int32(num_before)
        frequencies[targets] = block.frequencies
        next_free[place] += np.diff(block.begins)
        num_before += len(block.lengths)


def _merge_terms(lists: Sequence[TermList]) -> tuple[TermList, list[Array]]:
    """Return the union of sorted lists and, for each list, the places of its terms in the union."""
    places = [array("q") for _ in lists]
    union = []
    tagged = (zip(terms, itertools.repeat(place)) for terms, place in zip(lists, places, strict=True))
    merged = heapq.merge(*tagged, key=itemgetter(0))
    for number, (term, group) in enumerate(itertools.groupby(merged, key=itemgetter(0))):
        union.append(term)
        for _, place in group:
            place.append(number)
    return TermList.of(union), [np.array(place, np.int64) for place in places]


def _save_frame(folder: Path, terms: TermList, begins: Array, lengths: Array) -> None:
    """Write what does not grow with the number of entries."""
    np.save(folder / _TERMS_FILE, terms.letters)
    np.save(folder / _TERM_ENDS_FILE, terms.offsets)
    np.save(folder / _BEGINS_FILE, begins)
    np.save(folder / _LENGTHS_FILE, lengths)


def _new_array(file: Path, dtype: np.dtype[Any], length: int) -> Array:
    return np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=(int(length),))
