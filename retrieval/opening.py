"""Retrievers by name: what stands behind ``bm25:``, ``lucene:``, ``dense:``, ``hybrid:``, ``http:`` and ``tape:``.

``bm25:`` also takes the name of a shipped corpus, such as ``bm25:facts``. Its index is built once, in seconds, and kept
in the cache: ``$SRPO_CACHE``, else ``srpo`` in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.corpora import corpus_path, list_corpora
from retrieval.index_dir import MANIFEST_FILE, REBUILD
from srpo_envs.errors import SearchIndexError, near_miss
from srpo_envs.search import Retriever, open_retriever

if TYPE_CHECKING:
    from retrieval.bm25 import Bm25Index
    from retrieval.client import HttpRetriever
    from retrieval.dense import DenseRetriever
    from retrieval.hybrid import HybridRetriever
    from retrieval.lucene import LuceneRetriever
    from retrieval.tape import TapeRetriever

logger = logging.getLogger(__name__)


def open_any(name: str) -> Retriever:
    """Open a retriever by its name, or an index of any engine by its folder.

    Raises:
        SearchIndexError: no folder there, or it holds no index of a known kind.
        UnknownIdError: no such scheme.
    """
    if name and os.path.isdir(name):
        return open_retriever(f"{_kind_of(Path(name))}:{name}")
    if ":" not in name:
        found = "is a file, expected the folder of an index" if os.path.isfile(name) else "is no folder"
        shipped = " or ".join(f"bm25:{corpus}" for corpus in list_corpora())
        raise SearchIndexError(
            f"{name!r} {found}; build an index with `srpo retrieval build`, or name a retriever, such as {shipped}"
        )
    return open_retriever(name)


def open_bm25(location: str) -> Bm25Index:
    """Open an embedded BM25 index by its folder, or a shipped corpus by its name.

    Raises:
        SearchIndexError: neither is there; the message names the shipped corpora.
    """
    from retrieval.bm25 import Bm25Index

    if location in list_corpora():
        return _open_shipped(location)
    if not os.path.exists(location):
        raise SearchIndexError(
            f"no index at {location!r}; build one with `srpo retrieval build`, or name a shipped corpus"
            f"{near_miss(location, list_corpora())}"
        )
    return Bm25Index.open(location)


def open_lucene(location: str) -> LuceneRetriever:
    """Open a Lucene index of this package, of pyserini or of Search-R1."""
    from retrieval.lucene import LuceneRetriever

    return LuceneRetriever.open(location)


def open_dense(location: str) -> DenseRetriever:
    """Open a dense index."""
    from retrieval.dense import DenseRetriever

    return DenseRetriever.open(location)


def open_hybrid(location: str) -> HybridRetriever:
    """Open several retrievers over one corpus, their names joined by ``+``, and fuse their rankings."""
    from retrieval.hybrid import HybridRetriever

    return HybridRetriever.open(location)


def open_http(location: str) -> HttpRetriever:
    """Connect to a server by its URL; query parameters are settings of the client."""
    from retrieval.client import HttpRetriever

    return HttpRetriever.open(location)


def open_tape(location: str) -> TapeRetriever:
    """Open a recording of searches by its file."""
    from retrieval.tape import TapeRetriever

    return TapeRetriever.open(location)


def cache_dir() -> Path:
    """Return where built indexes of shipped corpora are kept."""
    if chosen := os.environ.get("SRPO_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "srpo"


def _open_shipped(name: str) -> Bm25Index:
    """Open the kept index of a shipped corpus, building it first where there is none of this corpus yet."""
    from retrieval.bm25 import Bm25Index

    corpus = corpus_path(name)
    digest = hashlib.sha256(corpus.read_bytes()).hexdigest()[:12]
    folder = cache_dir() / f"bm25-{name}-{digest}"
    try:
        return Bm25Index.open(folder)
    except SearchIndexError as error:
        logger.info("building the index of the corpus %r: %s", name, error)
    try:
        Bm25Index.build(corpus, folder)
        return Bm25Index.open(folder)
    except (OSError, SearchIndexError) as error:  # a read-only home, or another process builds it at this moment
        logger.warning("the index of the corpus %r is kept in memory only: %s", name, error)
    return Bm25Index.from_corpus(corpus)


def _kind_of(folder: Path) -> str:
    """Return which engine an index belongs to; one of pyserini has no manifest."""
    manifest = folder / MANIFEST_FILE
    if manifest.is_file():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return str(json.loads(manifest.read_bytes())["kind"])
    elif any(folder.glob("segments_*")):
        return "lucene"
    raise SearchIndexError(f"{str(folder)!r} is not an index; {REBUILD}")
