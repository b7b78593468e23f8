from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from retrieval.dense.encoders import Vectors
from retrieval.dense.vectors import encode_corpus
from srpo_envs.search import Passage

SHARD = 4
PASSAGES = [Passage(id=str(number), title=f"t{number}", text="x" * number) for number in range(10)]


class CountingEncoder:
    """Gives the length of the contents and its square, two passages a batch; dies where it is told to."""

    dimension = 2

    def __init__(self, dies_at: int | None = None) -> None:
        self.num_encoded = 0
        self._dies_at = dies_at

    def encode_passages(self, contents: Sequence[str], on_batch: Callable[[int], None] | None = None) -> Vectors:
        for start in range(0, len(contents), 2):
            if self._dies_at is not None and self.num_encoded >= self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            batch = contents[start : start + 2]
            self.num_encoded += len(batch)
            if on_batch is not None:
                on_batch(len(batch))
        lengths = np.array([len(content) for content in contents], dtype=np.float32)
        return np.stack([lengths, lengths**2], axis=1)


def encode(file: Path, encoder: CountingEncoder, passages: Sequence[Passage] = PASSAGES) -> Vectors:
    return encode_corpus(encoder, passages, file, shard_size=SHARD)


def expected() -> Vectors:
    lengths = np.array([len(f'"t{number}"\n') + number for number in range(10)], dtype=np.float32)
    return np.stack([lengths, lengths**2], axis=1)


def test_all_passages_are_encoded_in_order(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    vectors = encode_corpus(
        CountingEncoder(), PASSAGES, tmp_path / "v", shard_size=SHARD, on_progress=lambda *args: told.append(args)
    )
    np.testing.assert_array_equal(vectors, expected())
    assert not vectors.flags.writeable
    assert told == [("encoding passages", done, 10) for done in (2, 4, 6, 8, 10)]


def test_a_killed_process_goes_on_after_its_last_whole_shard(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path; from test_vectors import *\n"
        "encode(Path(sys.argv[1]), CountingEncoder(dies_at=6))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "v")], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "v").stat().st_size == SHARD * 2 * 4
    again = CountingEncoder()
    np.testing.assert_array_equal(encode(tmp_path / "v", again), expected())
    assert again.num_encoded == 10 - SHARD


@pytest.mark.parametrize("num_bytes", range(0, 10 * 8 + 1, 3))
def test_a_half_written_shard_is_encoded_again(tmp_path: Path, num_bytes: int) -> None:
    file = tmp_path / "v"
    encode(file, CountingEncoder())
    file.write_bytes(file.read_bytes()[:num_bytes])
    again = CountingEncoder()
    np.testing.assert_array_equal(encode(file, again), expected())
    num_kept = 10 if num_bytes == 80 else num_bytes // 8 // SHARD * SHARD
    assert again.num_encoded == 10 - num_kept


def test_what_is_whole_is_not_encoded_again(tmp_path: Path) -> None:
    encode(tmp_path / "v", CountingEncoder())
    again = CountingEncoder()
    np.testing.assert_array_equal(encode(tmp_path / "v", again), expected())
    assert again.num_encoded == 0


@pytest.mark.parametrize("num_passages", [1, 3, 4, 5, 8])
def test_a_corpus_of_any_size_fits(tmp_path: Path, num_passages: int) -> None:
    vectors = encode(tmp_path / "v", CountingEncoder(), PASSAGES[:num_passages])
    np.testing.assert_array_equal(vectors, expected()[:num_passages])
