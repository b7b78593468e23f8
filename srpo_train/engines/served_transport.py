"""How one version gets to several servers at once: through a folder that all see, or over one process group."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import torch
from torch._C._distributed_c10d import TCPStore

from srpo_envs.errors import ConfigError
from srpo_train.engines.buckets import Bucket
from srpo_train.engines.served_server import Published, ServerFaultError, VllmServer, within
from srpo_train.engines.served_weights import WeightFolder
from srpo_train.engines.weight_group import Meeting, WeightGroup, notes, open_store, own_address

_T = TypeVar("_T")

Faults = Mapping[str, ServerFaultError]
"""What went wrong with servers, by address; the others have the weights."""

_LONGEST_MEETING_S = 60.0
_SHARE = 0.5
"""Of the time that is left, what one bucket may take: a server that hangs leaves the others enough to begin again."""
_WORKER_SHARE = 0.8
"""Of that, how long workers wait for it: they are to say so before nobody listens any more."""


class Transport(Protocol):
    """A way for weights to get to servers."""

    async def give(self, servers: Sequence[VllmServer], published: Published) -> Faults:
        """Replace the weights of several servers, all at once, and return what went wrong."""
        ...


class FolderTransport:
    """Servers read files from a folder, each at its own pace.

    Args:
        timeout_s: Longest time of a push to a server, all steps together.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def give(self, servers: Sequence[VllmServer], published: Published) -> Faults:
        """Replace the weights of several servers, all at once, and return what went wrong."""
        end = time.monotonic() + self._timeout_s
        return (await _outcomes(servers, lambda server: server.take(published, end)))[1]


class GroupTransport:
    """Trainer and workers meet in one process group, in which each bucket is broadcast once.

    Args:
        backend: ``gloo`` or ``nccl``.
        host: Of this machine, as the servers see it; found by the way to the first of them when empty.
        timeout_s: Longest time of a push, all servers and steps together.

    Raises:
        ConfigError: there is no GPU for ``nccl``.
    """

    def __init__(self, backend: str, *, host: str, timeout_s: float) -> None:
        if backend == "nccl" and not torch.cuda.is_available():
            raise ConfigError('engine.served.transport: "nccl" needs a GPU, and there is none here; use "gloo"')
        self._backend = backend
        self._host = host
        self._timeout_s = timeout_s

    async def give(self, servers: Sequence[VllmServer], published: Published) -> Faults:
        """Replace the weights of several servers, all at once, and return what went wrong.

        A group breaks with any of its members. Those that are not to blame then begin again without it, with buckets
        that lie in the folder already.
        """
        push = _GroupPush(servers, published, self._backend, self._host, time.monotonic() + self._timeout_s)
        while push.members and not await push.attempt():
            pass
        return push.faults


class _GroupPush:
    """One version on its way over groups, each with fewer members than the one before."""

    def __init__(
        self, servers: Sequence[VllmServer], published: Published, backend: str, host: str, end: float
    ) -> None:
        assert published.weights is not None
        self.members = list(servers)
        self.faults: dict[str, ServerFaultError] = {}
        self._published = published
        self._weights: WeightFolder = published.weights
        self._backend = backend
        self._host = host
        self._end = end
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")

    async def attempt(self) -> bool:
        """Push to all members; False when some were left out and the others have to begin again."""
        await self._each(lambda server: server.begin(self._end))
        sizes = await self._each(lambda server: server.num_workers(self._end))
        if not self.members:
            return True
        firsts = self._first_ranks(sizes)
        store = open_store(self._left_s)
        group = await self._meet(store, firsts)
        if group is None:
            return False
        try:
            for bucket in self._weights.buckets:
                if not await self._send(group, store, bucket, firsts):
                    return False
        finally:
            group.close()
        await self._each(lambda server: server.finish(self._published, self._end))
        return True

    async def _meet(self, store: TCPStore, firsts: Mapping[str, range]) -> WeightGroup | None:
        wait_s = min(self._left_s * _SHARE, _LONGEST_MEETING_S)
        size = 1 + sum(map(len, firsts.values()))
        first = urlsplit(self.members[0].url)
        host = self._host or own_address(first.hostname or "", first.port or 80)
        meeting = Meeting(
            backend=self._backend, host=host, port=store.port, size=size, timeout_s=wait_s * _WORKER_SHARE
        )
        info = dataclasses.asdict(meeting)
        joining = asyncio.to_thread(WeightGroup, meeting, 0, device=self._device, store=store)
        end = time.monotonic() + wait_s

        def join(server: VllmServer) -> Awaitable[None]:
            return server.meet({**info, "first_rank": firsts[server.url].start}, end)

        (group, reason), (_, faults) = await asyncio.gather(_caught(joining), _outcomes(self.members, join))
        if not self._broke(faults, reason):
            return group
        if group:
            group.close()
        return None

    async def _send(self, group: WeightGroup, store: TCPStore, bucket: Bucket, firsts: Mapping[str, range]) -> bool:
        """Broadcast a bucket and return whether all members have it."""
        try:
            image = (await within(self._end, self._weights.image(bucket))).to(self._device)
        except (LookupError, TimeoutError) as error:
            return not self._broke({}, LookupError(f"{bucket} was not there to send: {error}"))
        end = time.monotonic() + self._left_s * _SHARE
        wait_s = (end - time.monotonic()) * _WORKER_SHARE

        async def load(server: VllmServer) -> None:
            try:
                await server.load(bucket, len(self._weights.buckets), end, {"timeout_s": wait_s})
            except ServerFaultError as fault:
                group.close()  # nobody is to wait for what will not come
                came = notes(store, firsts[server.url]) or "no rank was heard of"
                raise ServerFaultError(f"{fault}; {came}", is_down=fault.is_down, is_lost=fault.is_lost) from fault

        sending = asyncio.to_thread(group.broadcast, image, wait_s)
        (_, reason), (_, faults) = await asyncio.gather(_caught(sending), _outcomes(self.members, load))
        return not self._broke(faults, reason)

    async def _each(self, ask: Callable[[VllmServer], Awaitable[_T]]) -> dict[str, _T]:
        """Ask all members; leave out those that do not do it."""
        results, faults = await _outcomes(self.members, ask)
        self._leave_out(faults)
        return results

    def _broke(self, faults: Faults, error: Exception | None) -> bool:
        """Whether a member, or the group as a whole, failed; leave out whoever is to blame."""
        if not faults and not error:
            return False
        to_blame = {url: fault for url, fault in faults.items() if not fault.is_lost}
        unknown = {s.url: ServerFaultError(f"{s.url}: the group broke ({error})") for s in self.members}
        self._leave_out(to_blame or faults or unknown)
        return True

    def _leave_out(self, faults: Faults) -> None:
        self.faults.update(faults)
        self.members = [server for server in self.members if server.url not in faults]

    def _first_ranks(self, sizes: Mapping[str, int]) -> dict[str, range]:
        """Return the ranks of each member's workers; the trainer is rank 0."""
        ranks: dict[str, range] = {}
        first = 1
        for server in self.members:
            ranks[server.url] = range(first, first + sizes[server.url])
            first += sizes[server.url]
        return ranks

    @property
    def _left_s(self) -> float:
        return max(self._end - time.monotonic(), 0.01)


async def _outcomes(
    servers: Sequence[VllmServer], ask: Callable[[VllmServer], Awaitable[_T]]
) -> tuple[dict[str, _T], dict[str, ServerFaultError]]:
    """Ask servers at once; return what each answered, and what went wrong, by address."""
    results: dict[str, _T] = {}
    faults: dict[str, ServerFaultError] = {}

    async def one(server: VllmServer) -> None:
        try:
            results[server.url] = await ask(server)
        except ServerFaultError as fault:
            faults[server.url] = fault

    await asyncio.gather(*map(one, servers))
    return results, faults


async def _caught(work: Awaitable[_T]) -> tuple[_T | None, Exception | None]:
    """Return what comes of work on a group, or what it fails with."""
    try:
        return await work, None
    except RuntimeError as error:  # gloo, NCCL and the store each raise another kind of it
        return None, error
