"""Dense search: encoders of transformers and FAISS, both imported when they are first needed."""

from retrieval.dense.encoders import EncoderSettings
from retrieval.dense.index import HnswSettings, adopt_faiss_index, build_dense_index
from retrieval.dense.retriever import DenseRetriever

__all__ = ["DenseRetriever", "EncoderSettings", "HnswSettings", "adopt_faiss_index", "build_dense_index"]
