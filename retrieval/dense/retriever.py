"""Dense retrieval: passages and queries as vectors of one encoder, compared by inner product in a FAISS index.

What is encoded, and how, is Search-R1's (`retrieval.dense.encoders`), so its published indexes can be adopted. Its
faults are not here: no passage is returned twice when more are asked for than there are, equal scores have an order,
and an index never meets another encoder or corpus than it was built with. torch, transformers and faiss are imported
on first use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from retrieval.dense.encoders import Vectors
from retrieval.dense.index import DenseIndex, open_dense_index
from srpo_envs.errors import RetrieverError
from srpo_envs.search import Passage

_SCORE_DECIMALS = 5
"""Decimals of a score. Beyond them the same text differs with the batch it is encoded in and the kernel faiss picks."""


class DenseRetriever:
    """Searches a dense index. Safe for threads: FAISS searches side by side, the encoder takes one batch at a time.

    Example:
        ``DenseRetriever.open("indexes/facts-e5").search(["capital of Peru"], top_k=3)``
    """

    def __init__(self, index: DenseIndex) -> None:
        self.fingerprint = index.fingerprint
        """Of corpus, encoder and index settings."""
        self.num_passages = len(index.passages)
        """Size of the corpus."""
        self._index: DenseIndex | None = index

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, device: str = "auto", model: str | None = None) -> DenseRetriever:
        """Open an index; vectors and passages are memory-mapped, the encoder is loaded.

        Args:
            path: The index folder.
            device: Where the encoder runs.
            model: Where the encoder lies now, if not where it was at the build; it must be the same encoder.

        Raises:
            SearchIndexError: no index there, a damaged one, one of another kind, or one built with another encoder.
            EncoderLoadError: the encoder cannot be loaded.
            MissingExtraError: torch, transformers or faiss is not installed.
        """
        return cls(open_dense_index(path, device=device, model=model))

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the best passages of each query; an empty or blank query finds nothing.

        Scores are inner products, rounded to 5 decimals; passages of equal score come in the order of their ids.

        Args:
            queries: Any texts.
            top_k: Most passages for each query, at least 1.

        Raises:
            ValueError: `top_k` below 1.
            RetrieverError: the encoder failed, or the retriever is closed.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        if (index := self._index) is None:
            raise RetrieverError("the dense retriever is closed; open the index again")
        asked = [number for number, query in enumerate(queries) if query.strip()]
        found: list[list[Passage]] = [[] for _ in queries]
        if asked:
            vectors = index.encoder.encode_queries([queries[number] for number in asked])
            for row, hits in _nearest(index, vectors, min(top_k, self.num_passages)):
                passages = [index.passages.read(number, score) for number, score in hits]
                passages.sort(key=lambda passage: (-passage.score, passage.id))
                found[asked[row]] = passages[:top_k]
        return found

    def close(self) -> None:
        """Release vectors, passages and encoder."""
        if self._index is not None:
            self._index.passages.close()
            self._index = None


def _nearest(index: DenseIndex, vectors: Vectors, top_k: int) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield, by row of `vectors`, number and score of the `top_k` best passages and of all that equal the last."""
    num_passages = len(index.passages)
    rows, depth = np.arange(len(vectors)), top_k + 1
    while rows.size:
        depth = min(depth, num_passages)
        products, numbers = index.vectors.search(vectors[rows], depth)
        scores = np.round(products.astype(np.float64), _SCORE_DECIMALS)
        # Where the next passage equals the last one wanted, which of them are wanted is for their ids to say.
        is_open = (scores[:, top_k - 1] == scores[:, -1]) & (numbers[:, -1] >= 0) & (depth < num_passages)
        for place in np.flatnonzero(~is_open):
            hits = zip(numbers[place].tolist(), scores[place].tolist(), strict=True)
            yield int(rows[place]), [hit for hit in hits if hit[0] >= 0]  # faiss fills up with -1
        rows, depth = rows[is_open], depth * 2
