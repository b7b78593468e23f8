"""The search server: Search-R1's ``POST /retrieve`` over any retriever, for many clients at once.

In a program of its own::

    serve(lambda: open_retriever("bm25:facts"), ServerSettings(port=8000))

beside other work, in a test or a notebook::

    with SearchServer(retriever, ServerSettings(port=0)) as server:
        HttpRetriever(server.url).search(["capital of Peru"], top_k=3)
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from retrieval.serving.loading import LoadingRetriever, Opener
from retrieval.serving.settings import ServerSettings
from srpo_envs.errors import ConfigError, MissingExtraError
from srpo_envs.search import Retriever

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["SearchServer", "ServerSettings", "create_app", "serve"]

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that the server does not close one just as a request comes in."""


def create_app(source: Retriever | Opener, settings: ServerSettings | None = None) -> FastAPI:
    """Return the web application, for a server of your own.

    Args:
        source: A retriever, or a callable that opens one; it is called in the background when the application starts.
        settings: Limits; `host`, `port` and `shutdown_grace_s` are the business of the server around it.

    Raises:
        MissingExtraError: FastAPI or Prometheus' client is not installed.
    """
    return _app(LoadingRetriever(source), settings or ServerSettings())


def serve(source: Retriever | Opener, settings: ServerSettings | None = None) -> None:
    """Serve until SIGTERM or SIGINT; then take no new requests, answer those under way, close the retriever, return.

    Raises:
        ConfigError: the address cannot be listened on.
        MissingExtraError: FastAPI, uvicorn or Prometheus' client is not installed.
        BaseException: what the opener raised.
    """
    SearchServer(source, settings).run()


class SearchServer:
    """A server that listens from its construction on, and answers while it runs.

    Args:
        source: A retriever, or a callable that opens one in the background.
        settings: See `ServerSettings`.

    Raises:
        ConfigError: the address cannot be listened on.
        MissingExtraError: FastAPI, uvicorn or Prometheus' client is not installed.
    """

    def __init__(self, source: Retriever | Opener, settings: ServerSettings | None = None) -> None:
        with _named_extra():
            import uvicorn
        settings = settings or ServerSettings()
        self._retriever = LoadingRetriever(source, on_failure=self.stop)
        app = _app(self._retriever, settings)
        self._socket = _listen(settings.host, settings.port)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        """Where it answers."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                ws="none",
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(settings.shutdown_grace_s),
                lifespan="on",
            )
        )
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Answer until `stop` or a signal.

        Raises:
            BaseException: what the opener raised.
        """
        self._answer()
        self._raise_failure()

    def stop(self) -> None:
        """Take no new requests and answer those under way; returns at once."""
        self._server.should_exit = True

    def __enter__(self) -> Self:
        """Run in the background."""
        self._thread = threading.Thread(target=self._answer, name="search-server")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait for the requests under way.

        Raises:
            BaseException: what the opener raised.
        """
        self.stop()
        assert self._thread is not None
        self._thread.join()
        if error is None:
            self._raise_failure()

    def _answer(self) -> None:
        logger.info("listening on %s", self.url)
        with _signals_call(self.stop):
            self._server.run(sockets=[self._socket])

    def _raise_failure(self) -> None:
        if self._retriever.error is not None:
            raise self._retriever.error


def _app(retriever: LoadingRetriever, settings: ServerSettings) -> FastAPI:
    with _named_extra():
        from retrieval.serving.app import SearchService, build_app
    return build_app(SearchService(retriever, settings))


@contextlib.contextmanager
def _named_extra() -> Iterator[None]:
    """Name the extra that brings a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("retrieval", "srpo")):
            raise
        raise MissingExtraError(error.name, "retrieval") from error


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error}; choose another host or port") from error
    # Connections inherit it. Without it a small answer waits for the acknowledgement of the one before, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextlib.contextmanager
def _signals_call(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the server, and the process with status 0.

    uvicorn has handlers of its own while it runs, and once it has shut down raises the signal again for those before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
