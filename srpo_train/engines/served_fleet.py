"""Several servers with the same weights: who gets a request, who is set aside, and how one comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any

from srpo_envs.errors import EngineError
from srpo_train.engines.routing import PrefixRouter
from srpo_train.engines.served_server import Published, ServerFaultError, VllmServer
from srpo_train.engines.served_transport import Faults, Transport

logger = logging.getLogger(__name__)


class Fleet:
    """The servers of one policy, used from one event loop.

    A server gets requests only while it is known to have the published weights. One that breaks off, or answers with
    other weights (it was restarted), is set aside and looked after beside the requests: asked until it answers, given
    the published weights when its own are others, and then it is back.

    Args:
        policy_id: Named in errors.
        servers: At least one.
        transport: Brings them new weights.
        version: The policy's number for the weights that the servers were started with.
        outage_s: How long requests wait while no server is fit.
        probe_s: Pause between two looks at a server that is set aside.
        beside: Starts a task on the loop.
    """

    def __init__(
        self,
        policy_id: str,
        servers: Sequence[VllmServer],
        *,
        transport: Transport,
        version: int,
        outage_s: float,
        probe_s: float,
        beside: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.servers = tuple(servers)
        self._policy_id = policy_id
        self._transport = transport
        self._outage_s = outage_s
        self._probe_s = probe_s
        self._beside = beside
        self._router = PrefixRouter()
        self._by_url = {server.url: server for server in servers}
        self._replaced: list[VllmServer] = []
        self._looked_after: set[str] = set()
        self._given: set[str] = set()
        self._unasked = {server.url for server in servers}
        self._news = asyncio.Event()
        self.published = Published(version=version)
        """The weights that sample now."""

    async def pick(self, prompt: Hashable) -> VllmServer:
        """Return the server for a prompt; wait while none is fit, and in the beginning until all have been asked.

        Raises:
            EngineError: none was fit for too long; names every server and its trouble.
        """
        self._look_after_all()
        try:
            async with asyncio.timeout(self._outage_s):
                while self._unasked or not (fit := self._fit()):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise EngineError(
                f"engine of policy {self._policy_id!r}: no server was fit for {self._outage_s:g} s ({self._troubles()})"
            ) from None
        return self._by_url[self._router.pick(prompt, fit)]

    def set_aside(self, server: VllmServer, trouble: str) -> None:
        """Give a server no more requests until it is well and has the published weights."""
        if not server.trouble:
            logger.warning("server %s is set aside: %s", server.url, trouble)
        server.trouble = trouble
        self._router.forget(server.url)
        self._look_after_all()

    async def publish(self, published: Published) -> dict[str, float]:
        """Give weights to all servers that can be reached; the others get them when they are back.

        Returns:
            Seconds of each server that has them, by address.

        Raises:
            EngineError: a server did not take them (names it and the step), or none could be reached.
        """
        self.published = published
        self._router = PrefixRouter()
        for server in self.servers:
            server.trouble = server.trouble or "new weights are on their way"
        async with contextlib.AsyncExitStack() as stack:
            for server in self.servers:
                if server.url not in self._given:  # who is in the middle of older ones gets these when it is through
                    await stack.enter_async_context(server.changing)
            # Some may have been brought back, with these weights, while we waited for them.
            waiting = [server for server in self.servers if server.trouble and server.url not in self._given]
            faults = await self._give(waiting)
        self._look_after_all()
        if refused := [str(fault) for fault in faults.values() if not fault.is_down]:
            raise EngineError(
                f"policy {self._policy_id!r}: publishing version {published.version} failed: {'; '.join(refused)}"
            )
        if not self._fit():
            await self.pick("")  # all of them may be starting; what they get when they answer are these weights
        return {server.url: server.push_s for server in self.servers if not server.trouble}

    async def replace(self, url: str, server: VllmServer) -> None:
        """Ask a new server in the place of one that has ended and will not come back under its address.

        Requests that wait for the one that has ended are given up there at once, and made elsewhere.
        """
        old = self._by_url.pop(url)
        logger.warning("server %s is now %s", url, server.url)
        self.servers = tuple(server if known is old else known for known in self.servers)
        self._by_url[server.url] = server
        self._router.forget(url)
        self._unasked.discard(url)
        server.trouble = "it has just been started"
        old.leave(f"it is now {server.url}")
        self._replaced.append(old)  # closed at the end: somebody may be about to ask it
        self._look_after_all()

    async def close(self) -> None:
        """Close all connections."""
        for server in (*self.servers, *self._replaced):
            await server.close()

    async def _give(self, servers: Sequence[VllmServer]) -> Faults:
        """Give the published weights to servers that nobody else changes meanwhile."""
        published = self.published
        urls = {server.url for server in servers}
        self._given |= urls
        try:
            faults = await self._transport.give(servers, published) if servers else {}
        finally:
            self._given -= urls
        for server in servers:
            if fault := faults.get(server.url):
                server.trouble = str(fault)
            elif published is self.published:
                self._is_fit(server)
            self._heard_of(server)
        return faults

    def _look_after_all(self) -> None:
        for server in self.servers:
            if server.trouble and server.url not in self._looked_after:
                self._looked_after.add(server.url)
                self._beside(self._look_after(server))

    async def _look_after(self, server: VllmServer) -> None:
        """Look at a server until it is fit."""
        try:
            while server.trouble and server in self.servers:
                async with server.changing:
                    if server.trouble:
                        await self._bring_back(server)
                self._heard_of(server)
                if server.trouble:
                    await asyncio.sleep(self._probe_s)
        finally:
            self._looked_after.discard(server.url)

    async def _bring_back(self, server: VllmServer) -> None:
        try:
            label = await server.label()
            if label == self.published.label:
                self._is_fit(server)
            elif self.published.is_first:
                raise ServerFaultError(f"{server.url}: it has the weights {label!r}; restart it, or publish first")
            else:
                logger.warning("%s has the weights %r, not %r", server.url, label, self.published.label)
                for fault in (await self._give([server])).values():
                    raise fault
        except ServerFaultError as fault:
            if str(fault) != server.trouble:
                logger.warning("%s", fault)
            server.trouble = str(fault)

    def _is_fit(self, server: VllmServer) -> None:
        if server.trouble:
            logger.info("server %s is fit", server.url)
        server.trouble = ""

    def _heard_of(self, server: VllmServer) -> None:
        self._unasked.discard(server.url)
        self._news.set()

    def _fit(self) -> dict[str, int]:
        """Requests under way by server, for those that may get more."""
        return {server.url: server.num_under_way for server in self.servers if not server.trouble}

    def _troubles(self) -> str:
        return "; ".join(server.trouble for server in self.servers)
