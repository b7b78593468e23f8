"""A small HTTP server on a thread, for tests of clients: JSON in, JSON out, and whatever goes wrong on the way."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """One reply: an object is sent as JSON, a text as it is, None hangs up without a word."""

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class JsonServer:
    """Answers with what a function says; keeps every request in `asked`.

    ``stop`` closes it as a crash would, connections included; ``start`` brings it back on the same port.
    """

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = _Server(self.port, self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.hang_up()
            self._server = None

    def __enter__(self) -> JsonServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def handle(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            answer = self.answer(asked)
            time.sleep(answer.delay_s)
            return answer
        finally:
            with self._lock:
                self._now -= 1


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, port: int, owner: JsonServer) -> None:
        self.owner = owner
        self._connections: set[Any] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in list(self._connections):
            super().shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the client went away, or the server was stopped: both are what a test is about


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._reply("GET")

    def do_POST(self) -> None:
        self._reply("POST")

    def log_message(self, *arguments: object) -> None:
        pass

    def _reply(self, method: str) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = urlsplit(self.path)
        body = json.loads(content) if content else None
        asked = Asked(
            method,
            parts.path,
            dict(parse_qsl(parts.query)),
            {name.lower(): value for name, value in self.headers.items()},
            body,
        )
        answer = self.server.owner.handle(asked)
        if answer.body is None:
            self.close_connection = True
            return
        content = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in {"content-length": str(len(content)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
