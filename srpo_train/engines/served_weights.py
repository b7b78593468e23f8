"""Weights on their way to servers: files in a folder that they can read too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

SHARD_BYTES = 4 << 30
"""Size at which a file is full: what is copied out of an accelerator at once."""


def write_weights(folder: Path, weights: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write tensors as safetensors files, in a folder that appears whole or not at all.

    Tied tensors are written under each of their names: a server that is given one of them may leave the other as it
    was.

    Args:
        folder: Must not exist.
        weights: By name.
        shard_bytes: Largest file, unless one tensor is larger.
    """
    from safetensors.torch import save_file

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number, shard in enumerate(_shards(weights, shard_bytes)):
        # A copy of its own for each: safetensors refuses tensors that share memory.
        copies = {name: torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()) for name, t in shard.items()}
        save_file(copies, partial / f"model-{number:05d}.safetensors")
    partial.rename(folder)


def _shards(weights: Mapping[str, Tensor], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights.items():
        num_bytes = tensor.numel() * tensor.element_size()
        if shard and size + num_bytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += num_bytes
    yield shard
