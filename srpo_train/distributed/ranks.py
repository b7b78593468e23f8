"""The processes that train one run together, and what they tell each other.

``torchrun`` starts them; each is a *rank*, and rank 0 is the *main* one, which alone writes files. Everything between
them goes through the collective operations of ``torch.distributed``: gloo between CPUs, NCCL between GPUs. Every rank
has to come to the same ones in the same order, so nothing here may depend on what a single rank knows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from srpo_envs.errors import RankLostError, SrpoError

_T = TypeVar("_T")


class Ranks:
    """The processes of a run, seen from one of them; a process of its own is a group of one, which tells nobody.

    Args:
        rank: Which of them this is.
        size: How many there are.
        group: The group of `torch.distributed` that they meet in; the default one when omitted.

    Example:
        >>> Ranks().share(torch.ones(2))
        tensor([1., 1.])
    """

    def __init__(self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.size = size
        self.group = group

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files and talks to the terminal."""
        return self.rank == 0

    def beside(self) -> Ranks:
        """Return the same ranks in a group of their own, for a thread of each that meets the others' beside this one.

        Every rank makes the call; it is a meeting in itself. The group is between CPUs.
        """
        if not dist.is_initialized():
            return Ranks()
        with self._together("the making of a group"):
            return Ranks(self.rank, self.size, dist.new_group(backend="gloo"))

    def share(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors of one shape.

        Raises:
            RankLostError: a rank did not take part.
        """
        if self.size == 1:
            return tensor
        total = tensor.clone()
        with self._together("a sum over ranks"):
            dist.all_reduce(total, group=self.group)
        return total

    def sum_into(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over ranks; all ranks give the same shapes in the same order.

        Raises:
            RankLostError: a rank did not take part.
        """
        if self.size == 1:
            return
        with self._together("the sum of gradients"):
            for pending in [dist.all_reduce(tensor, group=self.group, async_op=True) for tensor in tensors]:
                pending.wait()

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor of which every rank has a part; one that is no `DTensor` is whole already.

        Raises:
            RankLostError: a rank did not take part.
        """
        from torch.distributed.tensor import DTensor  # much of torch, which one process does without

        if not isinstance(tensor, DTensor):
            return tensor
        with self._together(f"putting a tensor of shape {list(tensor.shape)} together"):
            whole: Tensor = tensor.full_tensor()
        return whole

    def gather(self, item: _T) -> list[_T]:
        """Return what every rank has, by rank.

        Raises:
            RankLostError: a rank did not take part.
        """
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        with self._together("the exchange of rollouts"):
            dist.all_gather_object(items, item, group=self.group)
        return items

    def from_main(self, find: Callable[[], _T]) -> _T:
        """Return, or raise, on every rank what a call returns or raises on the main one; it is made only there.

        Raises:
            RankLostError: a rank did not take part.
        """
        if self.size == 1:
            return find()
        found: list[Any] = [None, None]
        if self.is_main:
            try:
                found = [find(), None]
            except SrpoError as error:
                found = [None, error]
        with self._together("word from rank 0"):
            dist.broadcast_object_list(found, group=self.group)
        if found[1] is not None:
            raise found[1]
        result: _T = found[0]
        return result

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo, NCCL and the store each raise another kind of it
            reason = str(error).splitlines()[0]
            raise RankLostError(
                f"rank {self.rank} of {self.size}: {what} failed ({reason}); another rank has died, or took longer "
                "than distributed.timeout_s; see what it said last, then go on with --resume"
            ) from error


def is_main_process() -> bool:
    """Whether this process writes files, as far as its surroundings tell while the ranks do not meet."""
    return not _is_launched() or os.environ["RANK"] == "0"


@contextlib.contextmanager
def join_ranks(timeout_s: float) -> Iterator[Ranks]:
    """Meet the other processes for as long as the body runs; without ``torchrun`` there are none.

    Args:
        timeout_s: How long a rank waits for the others before it counts them as lost.

    Raises:
        RankLostError: the others did not come.
    """
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    if not _is_launched():
        yield Ranks()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise RankLostError(f"rank {os.environ['RANK']}: could not meet the other ranks ({error})") from error
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _is_launched() -> bool:
    return os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR"}
