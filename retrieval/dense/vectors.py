"""The vectors of a corpus in one file that only ever grows, so that a build that was killed goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from retrieval.corpus import contents_of
from retrieval.dense.encoders import Vectors
from retrieval.progress import OnProgress
from srpo_envs.search import Passage

_STAGE = "encoding passages"


class PassageEncoder(Protocol):
    """What is needed of an encoder here, see `retrieval.dense.encoders.TextEncoder`."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        ...

    def encode_passages(self, contents: Sequence[str], on_batch: Callable[[int], None] | None = None) -> Vectors:
        """Return [N, D], one vector per passage, in their order."""
        ...


def encode_corpus(
    encoder: PassageEncoder,
    passages: Sequence[Passage],
    file: Path,
    *,
    shard_size: int,
    on_progress: OnProgress | None = None,
) -> Vectors:
    """Encode all passages, those aside whose vectors are in the file already.

    A shard is written and flushed to disk as a whole. The length of the file says how many shards are done, and a shard
    of which a killed build wrote a part is encoded again, in the same batches: the vectors are the same either way.

    Args:
        encoder: gives the vectors.
        passages: of the whole corpus.
        file: raw float32 numbers, row after row. Its name must tell corpora and encoders apart: nothing in it does.
        shard_size: passages between two writes. Batches never reach across shards.
        on_progress: told after every batch.

    Returns:
        [N, D], memory-mapped and read-only.

    Raises:
        RetrieverError: the encoder failed; what was written stays.
        OSError: the file cannot be written.
    """
    total = len(passages)
    num_bytes = encoder.dimension * np.dtype(np.float32).itemsize
    num_done = _num_done(file, num_bytes, total, shard_size)

    def advance(num_encoded: int) -> None:
        nonlocal num_done
        num_done += num_encoded
        if on_progress is not None:
            on_progress(_STAGE, num_done, total)

    with file.open("ab") as stream:
        stream.truncate(num_done * num_bytes)
        for start in range(num_done, total, shard_size):
            contents = [contents_of(passage) for passage in passages[start : start + shard_size]]
            stream.write(encoder.encode_passages(contents, advance).data)
            stream.flush()
            os.fsync(stream.fileno())
    return np.memmap(file, dtype=np.float32, mode="r", shape=(total, encoder.dimension))


def _num_done(file: Path, num_bytes: int, total: int, shard_size: int) -> int:
    """Passages in whole shards of the file; the last shard of a corpus may be a short one."""
    num_rows = file.stat().st_size // num_bytes if file.exists() else 0
    return total if num_rows >= total else num_rows // shard_size * shard_size
