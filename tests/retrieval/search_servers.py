"""Servers for the tests: an engine whose answers are known, a server process, and a server that does as it is told.

As a program it is a search server over the known engine: ``python search_servers.py --port 8000``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from srpo_envs.search import Passage


def expected(query: str, top_k: int) -> list[Passage]:
    """What `KnownEngine` finds: passages that name their query, so that no answer can pass for another's."""
    if not query:
        return []
    return [
        Passage(id=f"{query}#{rank}", title=f"On {query}", text=f"Fact {rank}\nabout {query}.", score=9.5 - rank)
        for rank in range(top_k)
    ]


class KnownEngine:
    """A retriever with `expected` answers, an optional delay, and queries that break or hang it."""

    fingerprint = "known-1"
    num_passages = 42

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.calls: list[tuple[list[str], int]] = []
        self.released = threading.Event()
        self.is_closed = False

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        self.calls.append((list(queries), top_k))
        if "hang" in queries:
            self.released.wait(30)
        if "break" in queries:
            raise OSError("the disk is gone")
        time.sleep(self.delay_s)
        return [expected(query, top_k) for query in queries]

    def close(self) -> None:
        self.is_closed = True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start_server(port: int, *, delay_s: float = 0.0, loading_s: float = 0.0) -> subprocess.Popen[str]:
    """Start a server process; it may not listen yet."""
    command = [sys.executable, __file__, f"--port={port}", f"--delay-s={delay_s}", f"--loading-s={loading_s}"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def end(server: subprocess.Popen[str]) -> str:
    """Kill a server process if it still runs; return what it logged."""
    server.kill()
    _, logged = server.communicate()
    return logged


Script = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's script says."""

    protocol_version = "HTTP/1.1"
    script: Script
    body: bytes = b""

    def do_GET(self) -> None:
        self.script()

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.script()

    def answer(self, status: int, body: bytes | str | object, **headers: str) -> None:
        if not isinstance(body, bytes | str):
            body = json.dumps(body)
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


@contextlib.contextmanager
def scripted_server(script: Script) -> Iterator[str]:
    """Run a server whose every request is answered by a function; yields its URL."""
    server = _Server(("127.0.0.1", 0), type("Scripted", (Handler,), {"script": script}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    import logging

    from retrieval.server import ServerSettings, serve

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--delay-s", type=float)
    parser.add_argument("--loading-s", type=float)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    def open_engine() -> KnownEngine:
        time.sleep(options.loading_s)
        return KnownEngine(options.delay_s)

    serve(open_engine, ServerSettings(port=options.port))


if __name__ == "__main__":
    main()
