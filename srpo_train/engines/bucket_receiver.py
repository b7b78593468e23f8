"""A worker's end of a push: buckets come from a folder or over a process group, and their tensors go into a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from srpo_train.engines.buckets import tensors_in
from srpo_train.engines.publishing import PushProgress
from srpo_train.engines.weight_group import Meeting, WeightGroup

LOST = "did not arrive"
"""Stands in the error of a worker that waited for a bucket in vain: the fault is with another."""


@dataclass(kw_only=True)
class GroupInfo:
    """Which group the workers of a server are to join."""

    backend: str
    """See `Meeting`."""
    host: str
    """See `Meeting`."""
    port: int
    """See `Meeting`."""
    size: int
    """See `Meeting`."""
    timeout_s: float
    """See `Meeting`."""
    first_rank: int
    """Of this server's workers."""


@dataclass(kw_only=True)
class BucketInfo:
    """Which bucket a worker is to take."""

    number: int
    """Its place in the push; the first is 0. A negative one gives up what is under way."""
    num_buckets: int
    """How many there are."""
    num_bytes: int
    """Size of its image."""
    path: str = ""
    """Its file; it comes over the group when there is none."""
    notes: str = ""
    """Folder in which a worker writes how far it has come; none when empty."""
    timeout_s: float = 300.0
    """How long to wait for it."""


class BucketReceiver:
    """Takes pushes, bucket after bucket, all or none.

    Args:
        load: Puts tensors into the model, given by name.
        rank: Of this worker among the server's.
        device: Where the model is.
    """

    def __init__(
        self, load: Callable[[Iterable[tuple[str, Tensor]]], object], rank: int, device: torch.device | None = None
    ) -> None:
        self._load = load
        self._rank = rank
        self._device = device
        self._group: WeightGroup | None = None
        self._num_taken = 0
        self._num_buckets = 0

    def join(self, info: GroupInfo) -> None:
        """Join a group, in the place of the one before.

        Raises:
            RuntimeError: the others did not come.
        """
        self.leave()
        meeting = Meeting(
            backend=info.backend, host=info.host, port=info.port, size=info.size, timeout_s=info.timeout_s
        )
        device = self._device if info.backend == "nccl" else None
        self._group = WeightGroup(meeting, info.first_rank + self._rank, device=device)

    def leave(self) -> None:
        """Leave the group; safe where there is none."""
        if self._group:
            self._group.close()
        self._group = None

    def begin(self) -> None:
        """Begin a push with its first bucket."""
        self._num_taken = self._num_buckets = 0

    def take(self, info: BucketInfo) -> None:
        """Take the next bucket.

        Raises:
            RuntimeError: it did not come, is not the next one, or its tensors do not fit into the model; names the
                worker and the tensor.
        """
        if info.number != self._num_taken:
            raise RuntimeError(
                f"rank {self._rank} was given bucket {info.number} in the place of {self._num_taken}"
                if info.number >= 0
                else "given up, as asked"
            )
        tensors = tensors_in(self._receive(info))
        folder = Path(info.notes) if info.notes else None
        progress = PushProgress(tensors, self._rank, folder)
        try:
            self._load(progress)
        except Exception as error:  # whatever it is, the trainer has to know where
            raise RuntimeError(f"{progress} of bucket {info.number}: {error}") from error
        self._num_taken += 1
        self._num_buckets = info.num_buckets

    def finish(self) -> None:
        """Confirm that all buckets have come.

        Raises:
            RuntimeError: some have not.
        """
        if not self._num_taken or self._num_taken != self._num_buckets:
            raise RuntimeError(f"rank {self._rank} has {self._num_taken} of {self._num_buckets} buckets")

    def _receive(self, info: BucketInfo) -> Tensor:
        if info.path:
            return torch.from_file(info.path, size=info.num_bytes, dtype=torch.uint8)
        if self._group is None:
            raise RuntimeError(f"rank {self._rank} is in no group")
        self._group.note(f"waits for bucket {info.number}")
        image = torch.empty(info.num_bytes, dtype=torch.uint8, device=self._group.device)
        try:
            self._group.broadcast(image, info.timeout_s)
        except RuntimeError as error:
            self.leave()
            reason = str(error).splitlines()[0]
            raise RuntimeError(f"rank {self._rank}: bucket {info.number} {LOST} ({reason})") from error
        self._group.note(f"loads bucket {info.number}")
        return image
