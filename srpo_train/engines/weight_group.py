"""A process group of torch between a trainer and the workers of servers: one broadcast instead of a copy for each.

It stands beside the groups that trainer and servers have of their own, and lasts for one push. gloo passes data on
along a tree, NCCL along rings or trees, so the trainer does not send a bucket to every server itself.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Where the members of a group find each other."""

    backend: str
    """``gloo`` or ``nccl``."""
    host: str
    """Of the trainer, as the servers see it."""
    port: int
    """Of the store that the trainer keeps there."""
    size: int
    """Members, the trainer among them, which is the first."""
    timeout_s: float
    """How long a member waits for the others."""


class WeightGroup:
    """A group, seen from one member.

    Args:
        meeting: Where the others are.
        rank: This member; 0 is the trainer.
        device: Where broadcast data lie.
        store: The trainer's own, which the others find.

    Raises:
        RuntimeError: the others did not come.
    """

    def __init__(
        self, meeting: Meeting, rank: int, *, device: torch.device | None = None, store: Store | None = None
    ) -> None:
        timeout = timedelta(seconds=meeting.timeout_s)
        self.device = device or torch.device("cpu")
        self._rank = rank
        self._store = store or TCPStore(meeting.host, meeting.port, is_master=False, timeout=timeout)
        self._store.set_timeout(timeout)
        if meeting.backend == "nccl":
            self._group: Any = _nccl(self._store, rank, meeting.size, timeout)
        else:
            self._group = _gloo(self._store, rank, meeting, timeout)

    def broadcast(self, image: Tensor, timeout_s: float) -> None:
        """Send, or take, the bytes of a bucket.

        Args:
            image: [num_bytes] uint8, on this member's device.
            timeout_s: How long to wait for the others.

        Raises:
            RuntimeError: one of them is gone, or does not answer.
        """
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=timeout_s)
        self._group.broadcast([image], options).wait(timedelta(seconds=timeout_s))
        if image.is_cuda:
            torch.cuda.synchronize(image.device)

    def note(self, text: str) -> None:
        """Write down how far this member has come, where the trainer reads it."""
        with contextlib.suppress(RuntimeError):  # whatever is wrong shows at the next broadcast
            self._store.set(f"at-{self._rank}", text)

    def close(self) -> None:
        """Leave: whoever waits for this member stops waiting."""
        if self._group is not None:
            with contextlib.suppress(RuntimeError):
                self._group.abort()
        self._group = None


def open_store(timeout_s: float) -> TCPStore:
    """Return a store of this process, at a free port, at which members of a group meet."""
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def notes(store: Store, ranks: range) -> str:
    """Return how far members have come, as they wrote it down."""
    found = [f"rank {rank} {store.get(f'at-{rank}').decode()}" for rank in ranks if store.check([f"at-{rank}"])]
    return ", ".join(found)


def own_address(host: str, port: int) -> str:
    """Return the address of this machine that another one sees when it is spoken to.

    Raises:
        OSError: there is no way to it.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _gloo(store: Store, rank: int, meeting: Meeting, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo  # not all of it is known to its type
    options = gloo._Options()
    # The trainer listens where it said it would, the others where they would reach it.
    address = meeting.host if rank == 0 else own_address(meeting.host, meeting.port)
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = timeout
    return gloo(store, rank, meeting.size, options)


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    return nccl(store, rank, size, options)
