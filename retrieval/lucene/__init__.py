"""BM25 by Lucene itself, through the jar of pyserini; Java is started when an index is opened, not before."""

from retrieval.lucene.retriever import LuceneRetriever, build_lucene_index

__all__ = ["LuceneRetriever", "build_lucene_index"]
