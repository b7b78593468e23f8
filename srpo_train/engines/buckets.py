"""Weights cut into buckets: what travels together, and the bytes it travels as.

A bucket is the image of a safetensors file. What lies in a file is what goes over a wire, and whoever has the bytes has
the tensors: views into them, without a copy.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError
from srpo_train.engines.weight_stream import TensorSpec, WeightStream, groups_of

_FORMATS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _FORMATS.items()}
_LENGTH_BYTES = 8
"""The length of the header, at the beginning; the data begin at a multiple of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Tensors that travel together.

    Example:
        >>> (bucket,) = plan_buckets({"a": TensorSpec(shape=(2,), dtype=torch.float32)}, 1024)
        >>> bucket.num_bytes - bucket.data_bytes, bucket.data_bytes
        (64, 8)
    """

    number: int
    """Its place in the push, counted from 0."""
    specs: Mapping[str, TensorSpec]
    """The tensors by name, in the order of their bytes: formats of more bytes first, so that all are aligned."""

    @property
    def data_bytes(self) -> int:
        """Size of the tensors."""
        return sum(spec.num_bytes for spec in self.specs.values())

    @property
    def num_bytes(self) -> int:
        """Size of the image."""
        return len(self.header) + self.data_bytes

    @property
    def header(self) -> bytes:
        """What stands before the tensors."""
        entries, start = {}, 0
        for name, spec in self.specs.items():
            end = start + spec.num_bytes
            entries[name] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
            start = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text

    def empty(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return an image whose tensors are still to be filled in, [num_bytes] uint8, and the tensors in it."""
        header = bytearray(self.header)
        image = torch.empty(len(header) + self.data_bytes, dtype=torch.uint8)
        image[: len(header)] = torch.frombuffer(header, dtype=torch.uint8)
        return image, tensors_in(image)

    def __str__(self) -> str:
        names = list(self.specs)
        return f"bucket {self.number} ({names[0]!r}{f' to {names[-1]!r}' if len(names) > 1 else ''})"


def images(buckets: Sequence[Bucket], stream: WeightStream) -> Iterator[Tensor]:
    """Put a stream's tensors together, bucket by bucket, in ordinary memory; there is one of them at a time.

    Args:
        buckets: A plan of the stream's tensors.
        stream: Taken as far as the buckets are.

    Yields:
        The bytes of a bucket, [num_bytes] uint8; whoever takes them should let go of them before the next.
    """
    tensors = iter(stream)
    for bucket in buckets:
        image, views = bucket.empty()
        for name, tensor in itertools.islice(tensors, len(bucket.specs)):
            views[name].copy_(tensor)
            del tensor
        del views
        yield image
        del image


def plan_buckets(specs: Mapping[str, TensorSpec], bucket_bytes: int) -> tuple[Bucket, ...]:
    """Cut a model into buckets, each as full as it gets; what a server may fuse stays together.

    Args:
        specs: Of all tensors, those of a group together where the order is that of a `WeightStream`.
        bucket_bytes: Size of a bucket's tensors, unless one group alone is larger.

    Raises:
        ConfigError: a number format cannot travel, or the size is not positive.
    """
    if bucket_bytes < 1:
        raise ConfigError(f"bucket_bytes: expected at least 1, got {bucket_bytes}")
    for name, spec in specs.items():
        if spec.dtype not in _NAMES:
            raise ConfigError(f"{name!r} is {spec.dtype}, which cannot travel; expected one of {sorted(_FORMATS)}")
    cuts: list[dict[str, TensorSpec]] = []
    size = math.inf
    for group in groups_of(specs):
        group_bytes = sum(specs[name].num_bytes for name in group)
        if size + group_bytes > bucket_bytes:
            cuts.append({})
            size = 0
        cuts[-1].update((name, specs[name]) for name in group)
        size += group_bytes
    return tuple(Bucket(number=number, specs=_aligned(cut)) for number, cut in enumerate(cuts))


def tensors_in(image: Tensor) -> dict[str, Tensor]:
    """Return the tensors of an image, by name: views into it.

    Args:
        image: [num_bytes] uint8, on any device.

    Raises:
        ValueError: it is not the image of a bucket.
    """
    length = int.from_bytes(_bytes(image[:_LENGTH_BYTES]), "little")
    data = image[_LENGTH_BYTES + length :]
    entries = json.loads(_bytes(image[_LENGTH_BYTES : _LENGTH_BYTES + length]))
    return {name: _view(data, entry) for name, entry in entries.items()}


def _view(data: Tensor, entry: Mapping[str, Any]) -> Tensor:
    start, end = entry["data_offsets"]
    part = data[start:end].view(_FORMATS[entry["dtype"]])
    return part.view(entry["shape"])


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _aligned(specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    return dict(sorted(specs.items(), key=lambda item: -item[1].dtype.itemsize))
