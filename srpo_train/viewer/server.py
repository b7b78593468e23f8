"""Serving the viewer on this machine.

In a program of its own ``ViewerServer([Path("runs")]).run()``, beside other work, such as in a notebook or a test::

    with ViewerServer([Path("runs")], port=0) as server:
        print(server.url)
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from srpo_envs.errors import ConfigError, MissingExtraError
from srpo_train.viewer.opened import OpenRuns

DEFAULT_PORT = 8642
"""Where it listens when nothing else is said and nothing else does."""

_GRACE_S = 1


class ViewerServer:
    """A server that listens from its construction on, and answers while it runs.

    Args:
        roots: Directories of runs and evaluations, or folders of them.
        host: Address or name to listen on; nobody but this machine can reach the default.
        port: Port; 0 takes a free one, None `DEFAULT_PORT` or, where that is taken, a free one.
        follow_every_s: Seconds between two looks at what has grown.

    Raises:
        ConfigError: the address cannot be listened on.
        MissingExtraError: FastAPI or uvicorn is not installed.
        RecordError: a root is no run and holds none.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        follow_every_s: float = 1.0,
    ) -> None:
        try:
            import uvicorn

            from srpo_train.viewer.app import build_app
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("srpo"):
                raise
            raise MissingExtraError(error.name, "viewer") from error
        self.runs = OpenRuns(roots, follow_every_s=follow_every_s)
        """What it shows."""
        self._socket = _listen(host, port)
        name = "localhost" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}/"
        """Where it answers."""
        config = uvicorn.Config(
            build_app(self.runs, (host,)),
            log_config=None,
            access_log=False,
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            lifespan="on",
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Answer until a signal ends it.

        Raises:
            KeyboardInterrupt: the signal was Ctrl-C; it may also just end then.
        """
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        """Answer in the background."""
        self._thread = threading.Thread(target=self.run, name="viewer-server")
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop."""
        self._server.should_exit = True
        assert self._thread is not None
        self._thread.join()


def _listen(host: str, port: int | None) -> socket.socket:
    tried = (DEFAULT_PORT, 0) if port is None else (port,)
    for number in tried:
        try:
            return _bound(host, number)
        except OSError as error:
            problem = error
    raise ConfigError(f"cannot listen on {host} port {tried[-1]}: {problem}; choose another --host or --port")


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # Connections inherit it. Without it a small answer waits for the acknowledgement of the one before, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
