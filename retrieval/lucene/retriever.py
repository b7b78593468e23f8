"""BM25 by Lucene itself, through pyserini's Anserini: the reference that embedded BM25 is held against.

An index is a plain Lucene index, so that pyserini reads what is built here and this reads what pyserini or Search-R1
have built; one that is built here also has a manifest. Needs ``pip install 'srpo[lucene]'`` and pyserini without its
dependencies (see `retrieval.lucene.anserini`)::

    build_lucene_index("corpus.jsonl", "indexes/lucene")
    LuceneRetriever.open("indexes/lucene").search(["capital of Peru"], top_k=3)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from retrieval.corpus import Corpus, contents_of, iter_passages, row_of, split_contents
from retrieval.index_dir import MANIFEST_FILE, REBUILD, Manifest, new_index, open_manifest, write_manifest
from retrieval.lucene.anserini import REQUIRED_MODULES, anserini_version, find_anserini, index_collection, required_java
from retrieval.lucene.java import find_java_runtime
from retrieval.lucene.jvm import DEFAULT_HEAP, JavaError, Jvm, start_jvm, without_java_objects
from retrieval.progress import OnProgress
from srpo_envs.errors import RetrieverError, SearchIndexError
from srpo_envs.search import Passage

KIND, VERSION = "lucene", 1

_ROWS_FOLDER = "rows"
_PROGRESS_STEP = 1000
_MAX_CLAUSES = 2**31 - 1
"""Terms a query may have; Lucene's own limit of 1,024 would refuse long ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hit:
    """A found document as Lucene stores it."""

    id: str
    score: float
    stored: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """A search that waits for the Java thread."""

    queries: list[str]
    top_k: int
    answer: Future[list[list[_Hit]]] = field(default_factory=Future)


class LuceneRetriever:
    """Searches a Lucene index; from `open`. Searches of several threads are answered together, on all cores.

    Args:
        jvm: The Java machine.
        searcher: The index in it.
        fingerprint: Of index and settings.
    """

    def __init__(self, jvm: Jvm, searcher: _Searcher, fingerprint: str) -> None:
        self.num_passages = searcher.num_passages
        """Documents of the index."""
        self.fingerprint = fingerprint
        """16 hexadecimal digits that differ where the index, k1 or b does."""
        self._jvm = jvm
        self._searcher = searcher
        self._waiting: SimpleQueue[_Request] = SimpleQueue()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, k1: float = 0.9, b: float = 0.4, java_heap: str = DEFAULT_HEAP
    ) -> LuceneRetriever:
        """Open an index of `build_lucene_index`, of pyserini or of Search-R1.

        Args:
            path: Its folder.
            k1: BM25's saturation of term counts, at least 0.
            b: BM25's weight of document length, from 0 to 1.
            java_heap: Most memory for Java objects, such as ``"2g"``; the first index of a process decides. The index
                itself is memory-mapped and needs none of it.

        Raises:
            SearchIndexError: no index there, a damaged one, one of a newer Lucene, or one that stores no text.
            MissingExtraError: pyjnius is not installed.
            MissingPackageError: pyserini is not installed.
            JavaRuntimeError: no usable Java, or this process is a fork of one that uses it.
            ValueError: `k1` or `b` is out of range.
        """
        if not (0 <= k1 < float("inf") and 0 <= b <= 1):
            raise ValueError(f"BM25: expected k1 of at least 0 and b from 0 to 1, got k1={k1} and b={b}")
        folder = Path(path)
        identity = _identity(folder)
        jar = find_anserini()
        jvm = start_jvm(jar, min_version=required_java(jar), modules=REQUIRED_MODULES, max_heap=java_heap)
        try:
            searcher = jvm.call(lambda: _Searcher.open(folder, k1, b))
        except JavaError as error:
            raise SearchIndexError(
                f"{str(folder)!r} cannot be opened by Lucene of Anserini {anserini_version(jar)} ({error}); {REBUILD}"
            ) from error
        settings = json.dumps([identity, k1, b])
        fingerprint = hashlib.sha256(settings.encode()).hexdigest()[:16]
        return cls(jvm, searcher, fingerprint)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the best passages of each query, as `srpo_envs.search.Retriever` promises.

        Raises:
            ValueError: `top_k` below 1.
            RetrieverError: Lucene failed, or the retriever is closed.
            JavaRuntimeError: this process is a fork of the one that opened the index.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        if not queries:
            return []
        # Half a surrogate pair, which Java's texts cannot hold, becomes a question mark: a gap between words.
        request = _Request(queries=[query.encode(errors="replace").decode() for query in queries], top_k=top_k)
        self._waiting.put(request)
        self._jvm.submit(self._answer_waiting)
        try:
            found = request.answer.result()
        except JavaError as error:
            raise RetrieverError(f"Lucene's search of {len(queries)} queries failed: {error}") from error
        return [[_passage(hit) for hit in hits] for hits in found]

    def close(self) -> None:
        """Release the index; a later search raises. Closing twice does nothing."""
        if self._jvm.is_own:
            self._jvm.call(self._searcher.close)

    def _answer_waiting(self) -> None:
        """Answer all requests that have come meanwhile; runs in the Java thread, once for every request."""
        requests: dict[int, list[_Request]] = {}
        with contextlib.suppress(Empty):
            while True:
                request = self._waiting.get_nowait()
                requests.setdefault(request.top_k, []).append(request)
        for alike in requests.values():
            self._answer(alike)

    def _answer(self, requests: Sequence[_Request]) -> None:
        """Answer requests of one `top_k` as one batch, which Lucene spreads over the cores."""
        queries = [query for request in requests for query in request.queries]
        try:
            found = iter(without_java_objects(lambda: self._searcher.search(queries, requests[0].top_k)))
        except Exception as error:
            if len(requests) == 1:
                requests[0].answer.set_exception(error)
            else:  # one query fails the whole batch; the request that holds it shall fail alone
                for request in requests:
                    self._answer([request])
            return
        for request in requests:
            request.answer.set_result([next(found) for _ in request.queries])


class _Searcher:
    """The half of a retriever that touches Java objects; only the Java thread calls it."""

    def __init__(self, java: Any, logger: Any, stored_field: str) -> None:
        self.num_passages: int = java.get_total_num_docs()
        self._java = java
        self._logger = logger  # Java forgets the level of a logger that nobody holds
        self._stored_field = stored_field

    @classmethod
    def open(cls, folder: Path, k1: float, b: float) -> _Searcher:
        """Open an index; raises a Java exception where Lucene does, SearchIndexError for one without texts."""
        from jnius import autoclass

        logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
        logger.setLevel(autoclass("java.util.logging.Level").SEVERE)  # remarks on how fast vectors would be
        autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_MAX_CLAUSES)
        java = autoclass("io.anserini.search.SimpleSearcher")(str(folder.absolute()))
        java.set_bm25(k1, b)
        return cls(java, logger, _stored_field(java, folder))

    def search(self, queries: Sequence[str], top_k: int) -> list[list[_Hit]]:
        """Return what is found for each query."""
        if self._java is None:
            raise RetrieverError("the Lucene index is closed")
        most = min(top_k, self.num_passages)
        if most == 0:
            return [[] for _ in queries]
        distinct = dict.fromkeys(queries)
        if len(distinct) == 1:
            hits = self._read(self._java.search(queries[0], most))
            return [hits for _ in queries]
        found = self._search_batch(distinct, most)
        return [found[query] for query in queries]

    def close(self) -> None:
        """Release the index and the Java objects."""
        if self._java is not None:
            self._java.close()
            self._java = self._logger = None

    def _search_batch(self, queries: Iterable[str], top_k: int) -> dict[str, list[_Hit]]:
        from jnius import autoclass

        texts = autoclass("java.util.ArrayList")()
        for query in queries:
            texts.add(query)
        found = self._java.batch_search(texts, texts, top_k, os.cpu_count() or 1)  # the query is its own name
        return {query: self._read(found.get(query)) for query in queries}

    def _read(self, documents: Iterable[Any]) -> list[_Hit]:
        return [
            _Hit(id=found.docid, score=found.score, stored=found.lucene_document.get(self._stored_field) or "")
            for found in documents
        ]


def build_lucene_index(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    on_progress: OnProgress | None = None,
    num_threads: int = 2,
    heap_mib: int = 2048,
) -> Manifest:
    """Index a corpus in a Java process of its own, with Lucene's English analyzer and Porter's stemmer.

    Args:
        corpus: A corpus file, or passages.
        path: Where the index will be; one that is there already is replaced when the new one is whole.
        on_progress: Called with "reading" and "indexing" and how many passages are done.
        num_threads: Threads of the indexing process.
        heap_mib: Most memory for its Java objects.

    Raises:
        CorpusError: the corpus cannot be read.
        MissingPackageError: pyserini is not installed.
        JavaRuntimeError: no usable Java.
        SearchIndexError: the place is taken, or the indexing process fails.
    """
    report = on_progress or (lambda stage, num_done, num_total: None)
    jar = find_anserini()
    runtime = find_java_runtime(required_java(jar), REQUIRED_MODULES)
    with new_index(path) as folder:
        rows = folder / _ROWS_FOLDER
        rows.mkdir()
        num_passages, digest = _write_rows(iter_passages(corpus), rows, num_threads, report)
        num_read = index_collection(
            runtime,
            jar,
            rows=rows,
            index=folder,
            num_threads=num_threads,
            heap_mib=heap_mib,
            on_documents=lambda num_done: report("indexing", num_done, num_passages),
        )
        if num_read != num_passages:
            raise SearchIndexError(f"IndexCollection read {num_read} of {num_passages} passages; nothing was kept")
        shutil.rmtree(rows)
        (folder / "write.lock").unlink(missing_ok=True)
        manifest = Manifest(
            kind=KIND,
            version=VERSION,
            num_passages=num_passages,
            corpus_digest=digest,
            settings={"anserini": anserini_version(jar)},
        )
        write_manifest(folder, manifest)
    return manifest


def _write_rows(passages: Iterable[Passage], folder: Path, num_files: int, report: OnProgress) -> tuple[int, str]:
    """Write a corpus as Anserini reads it, a file for each thread; return the number of passages and their digest."""
    digest = hashlib.sha256()
    number = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{index}.jsonl").open("wb")) for index in range(num_files)]
        for number, passage in enumerate(passages, start=1):
            files[number % num_files].write(_row(passage))
            digest.update(row_of(passage))
            if number % _PROGRESS_STEP == 0:
                report("reading", number, None)
    report("reading", number, number)
    return number, digest.hexdigest()


def _row(passage: Passage) -> bytes:
    """Return a row of Search-R1's form, with title and text where its contents do not tell them apart."""
    contents = contents_of(passage)
    row = {"id": passage.id, "contents": contents}
    if split_contents(contents) != (passage.title, passage.text):
        row |= {"title": passage.title, "text": passage.text}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _passage(hit: _Hit) -> Passage:
    title, text = _title_and_text(hit.stored)
    return Passage(id=hit.id, title=title, text=text, score=hit.score)


def _title_and_text(stored: str) -> tuple[str, str]:
    """Read a stored document: a row of a corpus, of whatever collection, or its bare text."""
    try:
        row = json.loads(stored)
    except ValueError:
        return split_contents(stored)
    if not isinstance(row, dict):
        return split_contents(stored)
    if isinstance(row.get("text"), str):
        return str(row.get("title") or ""), row["text"]
    if isinstance(row.get("contents"), str):
        return split_contents(row["contents"])
    return "", stored


def _stored_field(java: Any, folder: Path) -> str:
    """Return the field that holds the documents' texts: the row itself, else the text that was indexed."""
    if java.get_total_num_docs() == 0:
        return "raw"
    document = java.doc(0)
    for name in ("raw", "contents"):
        if document.get(name) is not None:
            return name
    raise SearchIndexError(
        f"{str(folder)!r} stores no texts, so it can name passages but not show them; build it again with -storeRaw"
    )


def _identity(folder: Path) -> str:
    """Return what tells an index from others: the fingerprint of its manifest, else a digest of Lucene's list of files.

    Raises:
        SearchIndexError: no index there, or one of another kind.
    """
    if (folder / MANIFEST_FILE).is_file():
        return open_manifest(folder, KIND, VERSION).fingerprint
    commits = list(folder.glob("segments_*"))
    if not commits:
        raise SearchIndexError(f"no Lucene index at {str(folder)!r} (it has no file segments_...); {REBUILD}")
    newest = max(commits, key=lambda file: int(file.name.removeprefix("segments_"), 36))
    return hashlib.sha256(newest.read_bytes()).hexdigest()
