"""vLLM servers in places of a cluster: each is `srpo serve-policy`, held by an actor and ending with it.

When the server ends by itself its actor ends too, and Ray starts another one, perhaps on another machine and always
under a new address. The main rank looks for new addresses and tells the engine that asks the servers.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from srpo_envs.errors import EngineError
from srpo_train.cluster.lines import Answer
from srpo_train.cluster.roster import Desk
from srpo_train.config import Recipe

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_GRACE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSpec:
    """What a server is started with."""

    model: str
    """What it serves, for messages."""
    command: tuple[str, ...]
    """The command, without the address it listens on."""
    start_timeout_s: float
    """Longest wait until it answers."""


def server_spec(recipe: Recipe, policy_ids: Sequence[str]) -> ServerSpec:
    """Return how the servers of policies that share them are started."""
    policies = [recipe.policies[name] for name in policy_ids]
    adapters = [policy.adapter for policy in policies if policy.adapter]
    options = ["--dtype", policies[0].dtype, *(("--device", "cpu") if not recipe.ray.gpus_per_engine else ())]
    if adapters:
        rank = max(adapter.rank for adapter in adapters)
        options += ["--adapters", str(len(policies)), "--lora-rank", str(rank)]
    own = ("--", *recipe.ray.server_options) if recipe.ray.server_options else ()
    command = (sys.executable, "-m", "srpo_train.cli", "serve-policy", policies[0].model, *options)
    return ServerSpec(
        model=policies[0].model,
        command=(*command, "--until-stdin-closes", *own),
        start_timeout_s=recipe.ray.start_timeout_s,
    )


class ServerActor:
    """The Ray actor that holds one server.

    The server's standard input is a pipe from here, and the server ends when that closes: so it ends with this process,
    however that ends.

    Args:
        desk: Tells the driver that the server is there, and where.
        spec: How it is started.

    Raises:
        EngineError: it ended before it answered, or did not answer in time.
    """

    def __init__(self, desk: Desk, spec: ServerSpec) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        self.url = f"http://{host}:{_free_port(host)}"
        self._process = start_server(spec, self.url)
        desk.arrive(self.url)
        threading.Thread(target=self._end_with_it, name="srpo-server", daemon=True).start()

    def ready(self) -> Answer:
        """Answer with the server's address, once it answers itself."""
        return Answer(self.url)

    def _end_with_it(self) -> None:
        status = self._process.wait()
        logger.error("the server %s ended with status %d; another one is started", self.url, status)
        time.sleep(_LOOK_S)  # lets the message go out
        os._exit(1)


def start_server(spec: ServerSpec, url: str) -> subprocess.Popen[bytes]:
    """Start a server and wait until it answers.

    Raises:
        EngineError: it ended before, or did not answer in time.
    """
    host, _, port = url.removeprefix("http://").rpartition(":")
    cut = spec.command.index("--") if "--" in spec.command else len(spec.command)
    command = [*spec.command[:cut], "--host", host, "--port", port, *spec.command[cut:]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        _await_health(process, spec, url)
    except BaseException:
        end_server(process)
        raise
    return process


def end_server(process: subprocess.Popen[bytes]) -> None:
    """Let a server end in order, and see to it when it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_health(process: subprocess.Popen[bytes], spec: ServerSpec, url: str) -> None:
    end = time.monotonic() + spec.start_timeout_s
    while not _is_healthy(url):
        if process.poll() is not None:
            raise EngineError(
                f"the server of {spec.model} ended with status {process.returncode} before it answered; what it said "
                "is in Ray's log of this process"
            )
        if time.monotonic() > end:
            raise EngineError(f"the server of {spec.model} does not answer after {spec.start_timeout_s:g} s")
        time.sleep(_LOOK_S)


def _is_healthy(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=5.0) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class MovableEngine(Protocol):
    """An engine whose servers may get other addresses: `ServedEngine`."""

    def move_server(self, old: str, new: str) -> None:
        """Ask another server in the place of one."""
        ...


class AddressBook:
    """Looks for servers that have moved, and tells the engines that ask them.

    Args:
        read: Returns the address of every server by its seat.
        known: The addresses the engines were made with, by seat.
        every_s: Pause between two looks.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, str]], known: Mapping[str, str], *, every_s: float = 2.0
    ) -> None:
        self._read = read
        self._known = dict(known)
        self._every_s = every_s
        self._engines: list[tuple[frozenset[str], MovableEngine]] = []

    def add(self, seats: Sequence[str], engine: MovableEngine) -> None:
        """Tell an engine about the servers of some seats."""
        self._engines.append((frozenset(seats), engine))

    def start(self) -> None:
        """Look from now on, on a thread."""
        threading.Thread(target=self._run, name="srpo-addresses", daemon=True).start()

    def look(self) -> None:
        """Look once."""
        for seat, url in self._read().items():
            old = self._known.get(seat)
            if old is None or old == url:
                continue
            self._known[seat] = url
            for seats, engine in self._engines:
                if seat in seats:
                    engine.move_server(old, url)

    def _run(self) -> None:
        while True:
            time.sleep(self._every_s)
            try:
                self.look()
            except Exception:  # the boundary of the thread: a look that fails is repeated
                logger.warning("the addresses of the servers could not be read", exc_info=True)
