"""What a page that shows the text of models may do, and who may ask for it.

Text reaches the page as JSON and is only ever set as text, never as markup. Should that fail one day, the browser still
runs nothing that does not come from this package's own files, loads nothing from elsewhere, sends nothing anywhere, and
turns no text into markup (`require-trusted-types-for`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Sent with every answer."""

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}
"""Sent with every answer."""

_METHODS = ("GET", "HEAD")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Lets through what a browser on this very page asks for, and adds `HEADERS` to every answer.

    A page elsewhere may resolve a name of its own to this machine (DNS rebinding); its requests then carry that name as
    their host. So only an address, ``localhost``, this machine's name and the names given here are answered. What the
    browser says another site asks for is answered only where it opens the page itself.

    Args:
        app: What answers.
        names: Host names that are this server's beside those.
    """

    def __init__(self, app: App, names: tuple[str, ...] = ()) -> None:
        self._app = app
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.decode() not in HEADERS]
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*kept, *added]
            await send(message)

        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        status, text = refusal
        await send_guarded(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]}
        )
        await send_guarded({"type": "http.response.body", "body": text.encode()})

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if scope["method"] not in _METHODS:
            return 405, "only reading is possible here"
        if not self._is_own(headers.get("host", "")):
            return 421, "this server does not answer under that name; open it under the address it printed"
        is_page = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        if not is_page and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "another site may not ask for this"
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
