"""What happens to a request before it reaches its route: it is measured, and refused where it is too long."""

from __future__ import annotations

import time

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.serving.metrics import ServerMetrics


class MeasuredRequests:
    """Counts and times the requests of one path, refused ones too."""

    def __init__(self, app: ASGIApp, *, path: str, metrics: ServerMetrics) -> None:
        self._app = app
        self._path = path
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        start = time.monotonic()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(str(message["status"])).inc()
                self._metrics.request_seconds.observe(time.monotonic() - start)
            await send(message)

        with self._metrics.in_progress.track_inprogress():
            await self._app(scope, receive, send_counted)


class LimitedBodies:
    """Answers 413 to a body beyond a limit, before more of it is held in memory."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._detail = f"the body: expected at most {max_bytes} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await JSONResponse({"detail": self._detail}, 413)(scope, receive, send)
            return
        num_bytes = 0

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, self._detail)
            return message

        await self._app(scope, receive_limited, send)
