"""Search engines behind one protocol: BM25 (embedded), Lucene, dense, hybrid, a server and its client.

Nothing is imported before it is named, so that ``import retrieval`` costs nothing and needs no extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.bm25 import Bm25Index
    from retrieval.cache import CachedRetriever
    from retrieval.client import HttpRetriever
    from retrieval.dense import DenseRetriever, EncoderSettings, adopt_faiss_index, build_dense_index
    from retrieval.hybrid import HybridRetriever
    from retrieval.lucene import LuceneRetriever, build_lucene_index
    from retrieval.opening import open_any
    from retrieval.server import SearchServer, ServerSettings, create_app, serve
    from retrieval.tape import RecordingRetriever, TapeRetriever

_MODULES = {
    "Bm25Index": "bm25",
    "CachedRetriever": "cache",
    "DenseRetriever": "dense",
    "EncoderSettings": "dense",
    "HttpRetriever": "client",
    "HybridRetriever": "hybrid",
    "LuceneRetriever": "lucene",
    "RecordingRetriever": "tape",
    "SearchServer": "server",
    "ServerSettings": "server",
    "TapeRetriever": "tape",
    "adopt_faiss_index": "dense",
    "build_dense_index": "dense",
    "build_lucene_index": "lucene",
    "create_app": "server",
    "open_any": "opening",
    "serve": "server",
}

__all__ = [
    "Bm25Index",
    "CachedRetriever",
    "DenseRetriever",
    "EncoderSettings",
    "HttpRetriever",
    "HybridRetriever",
    "LuceneRetriever",
    "RecordingRetriever",
    "SearchServer",
    "ServerSettings",
    "TapeRetriever",
    "adopt_faiss_index",
    "build_dense_index",
    "build_lucene_index",
    "create_app",
    "open_any",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
    return getattr(importlib.import_module(f"retrieval.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
