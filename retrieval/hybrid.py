"""Hybrid search: the rankings of several engines over one corpus, fused by their ranks alone.

Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009): a passage scores the sum, over the engines that
found it, of 1 / (k + rank). Scores of the engines themselves are never compared, so they need not be comparable.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from retrieval.engine import fingerprint_of, num_passages_of
from srpo_envs.errors import ConfigError, RetrieverError
from srpo_envs.search import Passage, Retriever, close_retriever, open_retriever, search_all

_PLUS = re.compile(r"\+(?=[a-z0-9]+:)")
"""What joins the names of retrievers: a plus before a scheme, so that a path may hold one too."""


class HybridRetriever:
    """Searches every engine and fuses what they find. An engine that fails makes the search fail: none is left out.

    Args:
        retrievers: Engines over the same corpus; their order is without effect.
        depth: Passages asked of each engine, more where more are wanted in the end.
        k: Damps the weight of the first ranks; 60 in the paper.

    Raises:
        ConfigError: fewer than two engines, engines over corpora of different size, or a number below 1.

    Example:
        ``HybridRetriever([Bm25Index.open("indexes/bm25"), DenseRetriever.open("indexes/e5")])``
    """

    def __init__(self, retrievers: Sequence[Retriever], *, depth: int = 100, k: int = 60) -> None:
        if len(retrievers) < 2:
            raise ConfigError(f"hybrid search: expected at least two retrievers, got {len(retrievers)}")
        if depth < 1 or k < 1:
            raise ConfigError(f"hybrid search: depth and k must be at least 1, got depth={depth}, k={k}")
        sizes = {num_passages_of(retriever) for retriever in retrievers} - {0}
        if len(sizes) > 1:
            raise ConfigError(
                f"hybrid search: the retrievers must share one corpus, got corpora of {sorted(sizes)} passages"
            )
        self.num_passages = max(sizes, default=0)
        """Size of the corpus; 0 where no engine says."""
        self.fingerprint = _fingerprint([fingerprint_of(retriever) for retriever in retrievers], depth, k)
        """Of the engines, `depth` and `k`; empty where an engine has none."""
        self._retrievers = tuple(retrievers)
        self._depth = depth
        self._k = k

    @classmethod
    def open(cls, location: str) -> HybridRetriever:
        """Open retrievers named as `srpo_envs.search.open_retriever` names them, joined by ``+``.

        Args:
            location: Such as ``bm25:indexes/bm25+dense:indexes/e5``.

        Raises:
            ConfigError: fewer than two names, or corpora of different size.
            SrpoError: a retriever cannot be opened.
        """
        names = _PLUS.split(location)
        if len(names) < 2:
            raise ConfigError(f"hybrid search: expected names as in 'bm25:PATH+dense:PATH', got {location!r}")
        return cls([open_retriever(name) for name in names])

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the passages of each query by falling fused score, equal ones by id.

        Args:
            queries: Any texts.
            top_k: Most passages for each query, at least 1.

        Raises:
            ValueError: `top_k` below 1.
            RetrieverError: an engine failed, or two hold different passages of one id.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        depth = max(self._depth, top_k)
        found = [search_all(retriever, queries, depth) for retriever in self._retrievers]
        return [fuse(rankings, self._k)[:top_k] for rankings in zip(*found, strict=True)]

    def close(self) -> None:
        """Close the engines, where they can be closed."""
        for retriever in self._retrievers:
            close_retriever(retriever)


def fuse(rankings: Sequence[Sequence[Passage]], k: int = 60) -> list[Passage]:
    """Return the passages of all rankings by falling sum of 1 / (k + rank), equal ones by id; ranks count from 1.

    Args:
        rankings: Best first, no passage twice in one.
        k: See `HybridRetriever`.

    Raises:
        RetrieverError: two rankings hold different passages of one id.
    """
    passages: dict[str, Passage] = {}
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for ranking in rankings:
        for rank, passage in enumerate(ranking, start=1):
            known = passages.setdefault(passage.id, passage)
            if (known.title, known.text) != (passage.title, passage.text):
                raise RetrieverError(
                    f"hybrid search: two retrievers hold different passages of id {passage.id!r}, titled "
                    f"{known.title!r} and {passage.title!r}; build their indexes from one corpus"
                )
            shares[passage.id].append(1.0 / (k + rank))
    # An exactly rounded sum does not depend on the order of the engines.
    fused = [replace(passages[name], score=math.fsum(parts)) for name, parts in shares.items()]
    return sorted(fused, key=lambda passage: (-passage.score, passage.id))


def _fingerprint(fingerprints: Sequence[str], depth: int, k: int) -> str:
    if not all(fingerprints):
        return ""
    return hashlib.sha256(json.dumps([sorted(fingerprints), depth, k]).encode()).hexdigest()[:16]
