"""Embedded BM25 ranks as Lucene: by a table, by a plain reference and, where Java is there, by Lucene itself."""

import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import srpo_envs
from retrieval.bm25 import Bm25Index
from retrieval.bm25.analysis import analyze
from retrieval.bm25.index import encode_lengths
from retrieval.corpora import corpus_path
from retrieval.corpus import contents_of, read_corpus, row_of
from retrieval.lucene import LuceneRetriever, build_lucene_index
from srpo_envs.errors import ConfigError, CorpusError, JavaRuntimeError, MissingPackageError, SearchIndexError
from srpo_envs.search import Passage
from srpo_envs.tasks.rows import read_rows

LIMA = "Lima is the capital of Peru, founded by Francisco Pizarro in 1535."
PASSAGES = [
    Passage(id="b", title="Peru", text="The capital of Peru is Lima."),
    *(Passage(id=name, title="Lima", text=LIMA) for name in ("é", "a9", "a10")),
    Passage(
        id="Z",
        title="Lima (Ohio)",
        text="Lima is a city in Ohio. " + "The city of Lima lies in Allen County on the Ottawa River. " * 9,
    ),
    Passage(
        id="long",
        title="Rivers",
        text="A river flows. " + "Rivers flow to lakes, seas and other rivers; some rivers of Peru flow east. " * 40,
    ),
    Passage(
        id="jp", title="東京", text="東京 (Tokyo) is the capital of Japan; its founder's castle is the İmperial palace."
    ),
    Passage(id="empty", title="", text="the of and"),
    Passage(id="x", title="", text="possibly archaeology"),
]
LUCENE = {
    (0.9, 0.4): {
        "capital of Peru": "b 0.7001 a10 0.6227 a9 0.6227 é 0.6227 long 0.4599 jp 0.3073",
        "Lima": "Z 0.4555 a10 0.3815 a9 0.3815 é 0.3815 b 0.3155",
        "lima lima capital": "a10 1.0744 a9 1.0744 é 1.0744 b 0.9466 Z 0.9109 jp 0.3073",
        "Who founded the river's city?": "Z 2.8099 long 1.2519 a10 0.5971 a9 0.5971 é 0.5971",
        "東京の城 İMPERIAL": "jp 3.872",
        "rivers flow east Peru": "long 5.1163 Z 1.1652 b 0.3846 a10 0.3114 a9 0.3114 é 0.3114",
        "possible archaeology": "x 2.3113",
        "the of": "",
        "zebra": "",
        "": "",
    },
    (1.2, 0.75): {
        "capital of Peru": "b 0.783 a10 0.7015 a9 0.7015 é 0.7015 long 0.428 jp 0.3382",
        "Lima": "Z 0.4446 a10 0.4097 a9 0.4097 é 0.4097 b 0.3642",
        "lima lima capital": "a10 1.1701 a9 1.1701 é 1.1701 b 1.0927 Z 0.8891 jp 0.3382",
        "Who founded the river's city?": "Z 2.7337 long 1.2206 a10 0.6726 a9 0.6726 é 0.6726",
    },
}
"""What Anserini 1.7.1 (Lucene 9.9) finds in `PASSAGES`, by (k1, b) and query: ids and scores."""

FACTS_QUESTIONS = Path(srpo_envs.__file__).parent / "tasks" / "data" / "facts_test.jsonl.gz"

BUILD_AND_DIE = """
import os, signal, sys
from retrieval.bm25 import Bm25Index
def die(stage, num_done, num_total):
    if stage == "merging":
        os.kill(os.getpid(), signal.SIGKILL)
Bm25Index.build(sys.argv[1], sys.argv[2], on_progress=die)
"""

WORDS = [f"w{number}" for number in range(40)]
CORPORA = st.builds(
    lambda seed, num_passages, length: make_corpus(seed, num_passages, length),
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.integers(1, 60),
)
QUERIES = st.lists(st.sampled_from([*WORDS[:6], *WORDS, "the", "absent"]), max_size=7).map(" ".join)


def make_corpus(seed, num_passages, length):
    """Passages of words as uneven as in real text, many of them alike; ids in no order."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    ids = rng.sample(range(1000), num_passages)
    texts = [" ".join(rng.choices(WORDS, weights, k=rng.randint(0, length))) for _ in ids]
    return [Passage(id=str(name), title="", text=rng.choice(texts)) for name in ids]


def found(index, query, top_k=10):
    return [(passage.id, passage.score) for passage in index.search([query], top_k)[0]]


def coded_length(length):
    """Lucene's SmallFloat.byte4ToInt(intToByte4(length)), from its bits."""
    if length < 24:
        return length
    length -= 24
    if length < 8:
        return 24 + length
    shift = length.bit_length() - 4
    return 24 + (length >> shift << shift)


def reference(passages, query, top_k):
    """BM25 document by document, in Lucene's single precision."""
    k1, b = np.float32(0.9), np.float32(0.4)
    counts = {passage.id: Counter(analyze(contents_of(passage))) for passage in passages}
    lengths = {name: sum(count.values()) for name, count in counts.items()}
    num_documents = sum(length > 0 for length in lengths.values())
    average = np.float32(sum(lengths.values()) / max(num_documents, 1))
    scored = []
    for name, count in counts.items():
        total = 0.0
        for term, repeats in Counter(analyze(query)).items():
            if not count[term]:
                continue
            df = sum(term in other for other in counts.values())
            weight = np.float32(repeats) * np.float32(math.log(1 + (num_documents - df + 0.5) / (df + 0.5)))
            relative = b * np.float32(coded_length(lengths[name])) / average
            norm = np.float32(1) / (k1 * ((np.float32(1) - b) + relative))
            total += float(weight - weight / (np.float32(1) + np.float32(count[term]) * norm))
        if total:
            scored.append((name, np.float32(total)))
    scored.sort(key=lambda pair: (-pair[1], pair[0]))
    return [(name, round(float(score), 4)) for name, score in scored[:top_k]]


@pytest.mark.parametrize(
    ("k1", "b", "query", "answer"),
    [(k1, b, query, answer) for (k1, b), answers in LUCENE.items() for query, answer in answers.items()],
)
def test_ids_and_scores_are_those_of_lucene(k1, b, query, answer):
    index = Bm25Index.from_corpus(PASSAGES, k1=k1, b=b)
    expected = list(zip(answer.split()[::2], map(float, answer.split()[1::2]), strict=True))
    assert found(index, query) == expected
    for top_k in range(1, len(expected) + 1):
        assert found(index, query, top_k) == expected[:top_k]


def test_lengths_are_coded_as_lucene_codes_them():
    # 40 is the first length that does not survive; spacing doubles every 8 codes after it
    lengths = np.array([0, 1, 39, 40, 41, 55, 56, 59, 60, 1000, 65_536])
    codes = encode_lengths(lengths)
    assert codes.dtype == np.uint8
    assert codes.tolist() == [0, 1, 39, 40, 40, 47, 48, 48, 49, 87, 135]
    decoded = {}
    for length, code in zip(range(3000), encode_lengths(np.arange(3000)).tolist(), strict=True):
        decoded.setdefault(code, length)  # the smallest length of a code is the one it stands for
        assert decoded[code] == coded_length(length)


@settings(deadline=None)
@given(CORPORA, QUERIES, st.integers(1, 12))
def test_the_ranking_equals_a_plain_reference(passages, query, top_k):
    assert found(Bm25Index.from_corpus(passages), query, top_k) == reference(passages, query, top_k)


@settings(deadline=None, max_examples=30)
@given(CORPORA, st.lists(QUERIES, max_size=5), st.integers(1, 5))
def test_queries_of_a_batch_do_not_touch_each_other(passages, queries, top_k):
    index = Bm25Index.from_corpus(passages)
    assert index.search(queries, top_k) == [index.search([query], top_k)[0] for query in queries]


@settings(deadline=None, max_examples=10)
@given(CORPORA, st.lists(QUERIES, max_size=5), st.integers(1, 200))
def test_an_index_built_in_blocks_equals_one_built_at_once(tmp_path_factory, passages, queries, block_size):
    folder = tmp_path_factory.mktemp("indexes")
    blocks = Bm25Index.build(passages, folder / "blocks", block_size=block_size)
    whole = Bm25Index.build(passages, folder / "whole")
    for file in (folder / "whole").iterdir():
        assert file.read_bytes() == (folder / "blocks" / file.name).read_bytes(), file.name
    assert blocks.search(queries, 5) == whole.search(queries, 5) == Bm25Index.from_corpus(passages).search(queries, 5)


def test_extreme_settings_still_rank():
    for k1, b in ((0.0, 0.0), (0.0, 1.0), (1e30, 0.4), (1e-30, 1.0)):
        names = [name for name, _ in found(Bm25Index.from_corpus(PASSAGES, k1=k1, b=b), "lima capital peru")]
        assert sorted(names) == sorted(["b", "é", "a9", "a10", "Z", "long", "jp"])


@pytest.mark.parametrize(("k1", "b"), [(-1, 0.4), (math.nan, 0.4), (math.inf, 0.4), (0.9, 1.1), (0.9, -0.1)])
def test_settings_that_make_no_sense_are_refused(tmp_path, k1, b):
    with pytest.raises(ConfigError, match="expected k1 of at least 0 and b from 0 to 1"):
        Bm25Index.from_corpus(PASSAGES, k1=k1, b=b)
    with pytest.raises(ConfigError, match="expected k1 of at least 0 and b from 0 to 1"):
        Bm25Index.build(PASSAGES, tmp_path / "index", k1=k1, b=b)


def test_top_k_is_at_least_one():
    with pytest.raises(ValueError, match="top_k: expected at least 1, got 0"):
        Bm25Index.from_corpus(PASSAGES).search(["lima"], 0)
    assert len(found(Bm25Index.from_corpus(PASSAGES), "lima", 10**9)) == 5
    assert Bm25Index.from_corpus(PASSAGES).search([], 3) == []


def test_a_corpus_of_stop_words_finds_nothing(tmp_path):
    index = Bm25Index.build([Passage(id="1", title="", text="the of")], tmp_path / "index")
    assert found(index, "the lima") == []


def test_passages_come_back_whole(tmp_path):
    best = Bm25Index.build(PASSAGES, tmp_path / "index").search(["capital of Peru"], 1)[0][0]
    assert (best.title, best.text) == ("Peru", "The capital of Peru is Lima.")


def test_an_index_opens_where_it_was_moved_to(tmp_path):
    built = Bm25Index.build(PASSAGES, tmp_path / "index", k1=1.2, b=0.75)
    shutil.move(tmp_path / "index", tmp_path / "moved")
    moved = Bm25Index.open(tmp_path / "moved")
    assert moved.search(["lima", "peru"], 5) == built.search(["lima", "peru"], 5)
    assert moved.fingerprint == built.fingerprint
    assert moved.num_passages == len(PASSAGES)


def test_the_fingerprint_names_corpus_and_settings(tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(b"".join(map(row_of, PASSAGES)))
    fingerprint = Bm25Index.from_corpus(PASSAGES).fingerprint
    assert Bm25Index.build(file, tmp_path / "index").fingerprint == fingerprint
    others = [
        Bm25Index.from_corpus(PASSAGES, k1=1.2),
        Bm25Index.from_corpus(PASSAGES, b=0.5),
        Bm25Index.from_corpus(PASSAGES[:-1]),
        Bm25Index.from_corpus(PASSAGES[::-1]),
    ]
    assert len({fingerprint, *(other.fingerprint for other in others)}) == 5


def test_progress_is_told(tmp_path):
    calls = []
    Bm25Index.build(PASSAGES, tmp_path / "index", on_progress=lambda *call: calls.append(call), block_size=100)
    assert ("reading", len(PASSAGES), len(PASSAGES)) in calls
    assert [call for call in calls if call[0] == "merging"] == [("merging", 0, 2), ("merging", 2, 2)]


def test_a_corpus_fault_leaves_no_index(tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(row_of(PASSAGES[0]) + b"{cut")
    with pytest.raises(CorpusError, match="line 2"):
        Bm25Index.build(file, tmp_path / "index")
    assert [entry.name for entry in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_killed_build_leaves_no_half_index(tmp_path):
    file, path = tmp_path / "corpus.jsonl", tmp_path / "index"
    file.write_bytes(b"".join(map(row_of, PASSAGES)))
    died = subprocess.run([sys.executable, "-c", BUILD_AND_DIE, os.fspath(file), os.fspath(path)], check=False)
    assert died.returncode == -signal.SIGKILL
    with pytest.raises(SearchIndexError, match="no index at"):
        Bm25Index.open(path)
    assert found(Bm25Index.build(file, path), "zebra archaeology")[0][0] == "x"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


@pytest.mark.parametrize("name", ["postings.documents.npy", "terms.npy", "ids.ranks.npy", "passages.jsonl"])
def test_a_damaged_index_says_what_to_do(tmp_path, name):
    Bm25Index.build(PASSAGES, tmp_path / "index").close()
    os.truncate(tmp_path / "index" / name, (tmp_path / "index" / name).stat().st_size - 1)
    with pytest.raises(SearchIndexError, match=rf"{name}.*build it again with `srpo retrieval build`"):
        Bm25Index.open(tmp_path / "index")


def test_a_closed_index_does_not_answer(tmp_path):
    index = Bm25Index.build(PASSAGES, tmp_path / "index")
    index.close()
    index.close()
    with pytest.raises(ValueError, match="closed"):
        index.search(["lima"], 1)


def test_threads_get_the_answers_of_one(tmp_path):
    passages = make_corpus(3, 400, 40)
    index = Bm25Index.build(passages, tmp_path / "index")
    queries = [" ".join(random.Random(number).choices(WORDS, k=4)) for number in range(200)]
    expected = index.search(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        assert [answer[0] for answer in pool.map(lambda query: index.search([query], 5), queries)] == expected


@pytest.mark.parametrize("corpus", ["2wiki", "facts"])
def test_real_queries_rank_as_lucene_ranks_them(corpus, data_file, tmp_path):
    pytest.importorskip("jnius_config", reason="pyjnius is not installed")
    if corpus == "facts":
        path, questions = corpus_path("facts"), FACTS_QUESTIONS
    else:
        path, questions = data_file("2wiki/corpus.jsonl"), data_file("2wiki/questions.jsonl")
    passages = list(read_corpus(path))
    queries = real_queries(passages, read_rows(questions)[:300])
    ours = Bm25Index.from_corpus(passages).search(queries, 10)
    theirs = lucene_answers(passages, tmp_path, queries)
    same = [[p.id for p in our] == [p.id for p in their] for our, their in zip(ours, theirs, strict=True)]
    assert len(queries) == 500
    assert sum(same) >= 0.995 * len(same)
    for our, their, is_same in zip(ours, theirs, same, strict=True):
        if is_same:
            assert [p.score for p in our] == pytest.approx([p.score for p in their], abs=3e-4)


def lucene_answers(passages, folder, queries):
    try:
        build_lucene_index(passages, folder / "lucene")
        with contextlib.closing(LuceneRetriever.open(folder / "lucene")) as retriever:
            return retriever.search(queries, 10)
    except (JavaRuntimeError, MissingPackageError) as reason:
        pytest.skip(str(reason))


def real_queries(passages, questions):
    """All questions, and titles, rare words and neighbouring words of the passages, to 500 in all."""
    rng = random.Random(1)
    queries = [row["question"] for row in questions]
    queries += [passage.title for passage in rng.sample(passages, 60)]
    rare = [word for passage in passages for word in passage.text.split() if not word.isascii()]
    queries += [" ".join(rng.sample(rare, 3)) for _ in range(60)]
    return queries + [" ".join(rng.choice(passages).text.split()[3:9]) for _ in range(500 - len(queries))]
