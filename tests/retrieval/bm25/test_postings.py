"""The inverted index: what it says about a term, in memory, on disk and merged from blocks."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.bm25.postings import Inverter, Postings, TermList, merge
from srpo_envs.errors import SearchIndexError

TERMS = st.sampled_from(["a", "b", "ba", "é", "中", "😀", "\uffee"])
DOCUMENTS = st.lists(st.lists(TERMS, max_size=8), min_size=1, max_size=12)


def invert(documents):
    inverter = Inverter()
    for terms in documents:
        inverter.add(terms)
    return inverter.finish()


def content(postings):
    return {term: [entries.tolist() for entries in postings.find(term)] for term in postings.terms}


def expected(documents):
    """Documents and frequencies by term, counted the slow way."""
    counts = [Counter(terms) for terms in documents]
    return {
        term: [
            [number for number, count in enumerate(counts) if term in count],
            [count[term] for count in counts if term in count],
        ]
        for term in sorted({term for count in counts for term in count})
    }


@given(DOCUMENTS)
def test_postings_say_which_documents_hold_a_term_and_how_often(documents):
    postings = invert(documents)
    assert content(postings) == expected(documents)
    assert postings.lengths.tolist() == [len(terms) for terms in documents]
    assert postings.find("absent") is None


@given(DOCUMENTS, st.data())
def test_blocks_merge_to_what_one_block_would_be(tmp_path_factory, documents, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(documents)), max_size=3)) | {len(documents)})
    blocks = [invert(documents[begin:end]) for begin, end in zip([0, *cuts], cuts, strict=False)]
    folder = tmp_path_factory.mktemp("merged")
    merge(blocks, folder)
    merged, whole = Postings.load(folder), invert(documents)
    assert content(merged) == content(whole)
    assert merged.lengths.tolist() == whole.lengths.tolist()
    assert merged.frequencies.dtype == whole.frequencies.dtype


def test_frequencies_are_as_wide_as_they_must(tmp_path):
    blocks = [invert([["a"] * 255]), invert([["a"] * 256, ["b"]]), invert([["b"] * 70_000])]
    assert [block.frequencies.dtype for block in blocks] == [np.uint8, np.uint16, np.uint32]
    merge(blocks, tmp_path)
    assert content(Postings.load(tmp_path)) == {"a": [[0, 1], [255, 256]], "b": [[2, 3], [1, 70_000]]}


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]), max_size=5)), st.text(max_size=5))
def test_a_term_list_finds_its_terms_and_no_others(terms, other):
    ordered = sorted(terms)
    packed = TermList.of(ordered)
    assert list(packed) == ordered
    assert packed[:] == ordered
    assert [packed.find(term) for term in ordered] == list(range(len(ordered)))
    assert packed.find(other) == (ordered.index(other) if other in terms else None)


@pytest.mark.parametrize("name", ["terms.npy", "postings.documents.npy", "postings.offsets.npy"])
def test_files_that_do_not_fit_each_other_are_refused(tmp_path, name):
    invert([["a", "b"], ["b"]]).save(tmp_path)
    np.save(tmp_path / name, np.load(tmp_path / name)[:1])
    with pytest.raises(SearchIndexError, match="do not fit each other; build it again"):
        Postings.load(tmp_path)


def test_a_negative_length_is_refused(tmp_path):
    invert([["a", "b"], ["b"]]).save(tmp_path)
    np.save(tmp_path / "lengths.npy", np.array([2, -1], np.int32))
    with pytest.raises(SearchIndexError, match="do not fit each other"):
        Postings.load(tmp_path)
