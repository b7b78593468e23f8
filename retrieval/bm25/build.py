"""Building an embedded BM25 index: on disk in blocks, so that memory does not grow with the postings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from retrieval.bm25.analysis import analyze
from retrieval.bm25.postings import Array, Inverter, Postings, merge
from retrieval.corpus import Corpus, contents_of, iter_passages
from retrieval.index_dir import Manifest, PassageWriter, new_index, write_manifest
from retrieval.progress import OnProgress
from srpo_envs.errors import ConfigError

KIND, VERSION = "bm25", 1

ID_RANKS_FILE = "ids.ranks.npy"

BLOCK_SIZE = 1 << 23
"""Terms inverted at once; a block takes some 300 MB."""

_ANALYSIS = "lucene-9-english"
_PROGRESS_STEP = 1000


def build_bm25_index(
    corpus: Corpus,
    path: str | os.PathLike[str],
    *,
    k1: float,
    b: float,
    on_progress: OnProgress | None,
    block_size: int,
) -> None:
    """Write an index folder; see `retrieval.bm25.Bm25Index.build`."""
    check_settings(k1, b)
    report = on_progress or (lambda stage, num_done, num_total: None)
    with new_index(path) as folder:
        ids: list[str] = []
        blocks: list[Path] = []
        with PassageWriter(folder) as writer:
            for block in _invert_blocks(corpus, writer, ids, block_size, report):
                blocks.append(folder / f"block-{len(blocks)}")
                blocks[-1].mkdir()
                block.save(blocks[-1])
        report("merging", 0, len(blocks))
        merge([Postings.load(block) for block in blocks], folder)
        report("merging", len(blocks), len(blocks))
        for block_folder in blocks:
            shutil.rmtree(block_folder)
        np.save(folder / ID_RANKS_FILE, rank_ids(ids))
        write_manifest(folder, make_manifest(writer.num_passages, writer.digest, k1, b))


def check_settings(k1: float, b: float) -> None:
    """Raise ConfigError for settings BM25 is not defined for."""
    if not (0 <= k1 < float("inf") and 0 <= b <= 1):
        raise ConfigError(f"BM25: expected k1 of at least 0 and b from 0 to 1, got k1={k1} and b={b}")


def make_manifest(num_passages: int, corpus_digest: str, k1: float, b: float) -> Manifest:
    """Return what a BM25 index of a corpus is."""
    settings = {"k1": float(k1), "b": float(b), "analysis": _ANALYSIS}
    return Manifest(
        kind=KIND, version=VERSION, num_passages=num_passages, corpus_digest=corpus_digest, settings=settings
    )


def rank_ids(ids: Sequence[str]) -> Array:
    """Return [len(ids)] int32, the place of each id among the sorted ones; Lucene's bytes sort like code points."""
    ranks = np.empty(len(ids), np.int32)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids), dtype=np.int32)
    return ranks


def _invert_blocks(
    corpus: Corpus, writer: PassageWriter, ids: list[str], block_size: int, report: OnProgress
) -> Iterator[Postings]:
    """Write the passages and yield the postings of one block of them after the other."""
    inverter = Inverter()
    for passage in iter_passages(corpus):
        writer.add(passage)
        ids.append(passage.id)
        inverter.add(analyze(contents_of(passage)))
        if inverter.num_occurrences >= block_size:
            yield inverter.finish()
            inverter = Inverter()
        if writer.num_passages % _PROGRESS_STEP == 0:
            report("reading", writer.num_passages, None)
    if inverter.num_documents:
        yield inverter.finish()
    report("reading", writer.num_passages, writer.num_passages)
