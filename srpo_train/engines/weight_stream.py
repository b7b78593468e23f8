"""The tensors of one version, one after the other: known by name and shape before the first of them exists whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a published tensor has to look like.

    Example:
        >>> TensorSpec(shape=(340, 64), dtype=torch.float32)
        TensorSpec(shape=(340, 64), dtype=torch.float32)
    """

    shape: tuple[int, ...]
    """Size of each dimension."""
    dtype: torch.dtype
    """Number format."""

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Return what a tensor looks like."""
        return cls(shape=tuple(tensor.shape), dtype=tensor.dtype)

    @property
    def num_bytes(self) -> int:
        """Size of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{list(self.shape)} {str(self.dtype).removeprefix('torch.')}"


class WeightStream:
    """Tensors that are put together when their turn comes, and then never again.

    Those of one group (see `group_of`) follow each other. Where a model is spread over ranks, all of them put each
    tensor together, in this order: the main one takes it, the others only go along.

    Args:
        specs: What each tensor looks like, by name.
        whole: Puts the tensor of a name together.

    Example:
        >>> state = {"b": torch.ones(2), "a": torch.zeros(1)}
        >>> stream = WeightStream({name: TensorSpec.of(tensor) for name, tensor in state.items()}, state.__getitem__)
        >>> [name for name, _ in stream], list(stream)
        (['b', 'a'], [])
    """

    def __init__(self, specs: Mapping[str, TensorSpec], whole: Callable[[str], Tensor]) -> None:
        self.specs: Mapping[str, TensorSpec] = {name: specs[name] for group in groups_of(specs) for name in group}
        """What each tensor looks like, in the order in which they come."""
        self._whole = whole
        self._names = iter(self.specs)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name in self._names:
            yield name, self._whole(name).detach()

    def exhaust(self) -> None:
        """Put together what is left, for nobody."""
        for _ in self:
            pass


def group_of(name: str) -> str:
    """Return what a tensor has in common with those that a server may hold as one with it.

    Queries, keys and values, or the gates of an MLP and its experts, belong to one part of one layer.

    Example:
        >>> group_of("model.layers.3.self_attn.q_proj.weight"), group_of("lm_head.weight")
        ('model.layers.3.self_attn', 'lm_head.weight')
    """
    parts = name.split(".")
    layer = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return name if layer is None else ".".join(parts[: layer + 2])


def groups_of(names: Mapping[str, TensorSpec]) -> list[list[str]]:
    """Return names by group, groups and their members in the order in which they appear."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(group_of(name), []).append(name)
    return list(groups.values())
