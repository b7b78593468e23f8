"""Weights on their way to servers: buckets in a folder, read by any number of servers while they are written and after.

A server that comes late finds all of a version there, though the trainer never had it whole in memory and may have
other weights by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from srpo_train.engines.buckets import Bucket


class WeightFolder:
    """The buckets of one version, each a safetensors file that appears whole or not at all.

    Used from one event loop.

    Args:
        folder: Must not exist.
        buckets: What is to come.
    """

    def __init__(self, folder: Path, buckets: Sequence[Bucket]) -> None:
        self.folder = folder
        self.buckets = tuple(buckets)
        """What is to come."""
        self._num_written = 0
        self._is_over = False
        self._news = asyncio.Event()
        folder.mkdir(parents=True)

    @property
    def num_bytes(self) -> int:
        """What a server gets."""
        return sum(bucket.num_bytes for bucket in self.buckets)

    async def add(self, image: Tensor) -> None:
        """Write the next bucket.

        Args:
            image: Its bytes, [num_bytes] uint8; see `srpo_train.engines.buckets.images`.
        """
        await asyncio.to_thread(_write, self._path(self._num_written), image)
        self._num_written += 1
        self._tell()

    async def end(self) -> None:
        """Tell everyone who waits that there will be no more."""
        self._is_over = True
        self._tell()

    async def path(self, bucket: Bucket) -> Path:
        """Return where a bucket lies, once it does.

        Raises:
            LookupError: it never will.
        """
        while bucket.number >= self._num_written:
            if self._is_over:
                raise LookupError("the trainer gave up")
            await self._news.wait()
        return self._path(bucket.number)

    async def image(self, bucket: Bucket) -> Tensor:
        """Return the bytes of a bucket, once it is there: its file, mapped into memory.

        Raises:
            LookupError: it never will be.
        """
        return torch.from_file(str(await self.path(bucket)), size=bucket.num_bytes, dtype=torch.uint8)

    def _path(self, number: int) -> Path:
        return self.folder / f"bucket-{number:05d}.safetensors"

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _write(path: Path, image: Tensor) -> None:
    partial = path.with_suffix(".partial")
    image.numpy().tofile(partial)
    partial.rename(path)
