"""Embedded BM25, ranked as Lucene ranks: no Java, no download, memory-mapped."""

from retrieval.bm25.index import Bm25Index

__all__ = ["Bm25Index"]
