"""One HTTP server that speaks JSON: a question asked once, or again until it passes. What went wrong is a value."""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import json
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from srpo_envs.errors import ConfigError, MissingExtraError

try:
    import httpx
except ModuleNotFoundError as _error:
    raise MissingExtraError("httpx", "train") from _error

_PASSING = (408, 409, 425, 429)
"""Client errors that pass by themselves; every server error may."""
_IDLE_S = 4.0
"""How long an unused connection is kept: less than uvicorn keeps it, so that it does not close one in use."""
_LONGEST_REASON = 500


class Reply(NamedTuple):
    """What came back from a server."""

    status: int | None
    """HTTP status; None where no answer came."""
    body: Mapping[str, Any]
    """The JSON object of the answer; empty where there is none."""
    reason: str = ""
    """What went wrong, in words; empty for an answer that can be read."""
    retry_after_s: float = 0.0
    """Seconds the server asks to wait."""
    is_down: bool = False
    """Nobody listens there, or the connection broke."""

    @property
    def is_good(self) -> bool:
        """Whether the server did what it was asked."""
        return not self.reason

    @property
    def may_pass(self) -> bool:
        """Whether the same question may be answered another time."""
        return bool(self.reason) and (self.status is None or self.status in _PASSING or not 300 <= self.status < 500)


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long to wait, and how often to ask again."""

    timeout_s: float = 600.0
    """Longest wait for one answer."""
    connect_timeout_s: float = 5.0
    """Longest wait for a connection."""
    max_retries: int = 6
    """Tries after the first."""
    first_pause_s: float = 0.5
    """Pause before the first of them; each is twice as long as the one before, less up to half by chance."""
    longest_pause_s: float = 30.0
    """Longest pause, unless the server asks for more."""
    jitter: random.Random = field(default_factory=random.SystemRandom, repr=False, compare=False)
    """Keeps many clients from coming back at the same moment."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            ConfigError: a number is out of range.
        """
        least = {"timeout_s": 1e-3, "connect_timeout_s": 1e-3, "max_retries": 0, "first_pause_s": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if not math.isfinite(value) or value < bound:
                raise ConfigError(f"{name}: expected at least {bound:g}, got {value}")

    def pause_s(self, attempt: int, retry_after_s: float) -> float:
        """Return the pause after a try, counted from 0: long enough for the server, and doubling."""
        pause = min(self.first_pause_s * 2.0**attempt, self.longest_pause_s)
        return max(pause * self.jitter.uniform(0.5, 1.0), retry_after_s)


class Endpoint:
    """Asks one server, from one event loop.

    Args:
        url: Its address; paths are added to it.
        headers: Sent with every request.
        patience: Timeouts and retries.
        max_connections: Most connections at a time.

    Raises:
        ConfigError: the URL is not one.
    """

    def __init__(
        self, url: str, *, patience: Patience, headers: Mapping[str, str] | None = None, max_connections: int = 256
    ) -> None:
        self.url = checked_url(url)
        self._patience = patience
        limits = httpx.Limits(
            max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=_IDLE_S
        )
        timeout = httpx.Timeout(patience.timeout_s, connect=patience.connect_timeout_s, pool=None)
        parsed = httpx.URL(self.url)
        self._client = httpx.AsyncClient(
            limits=limits,
            timeout=timeout,
            headers=dict(headers or {}),
            # A proxy cannot reach this machine's own loopback; certificates are only loaded where they are needed.
            trust_env=not _is_loopback(parsed.host),
            verify=parsed.scheme == "https",
        )

    async def get(self, path: str, *, timeout_s: float | None = None) -> Reply:
        """Ask once with GET."""
        return await self._ask("GET", path, None, timeout_s)

    async def post(self, path: str, payload: Any = None, *, timeout_s: float | None = None) -> Reply:
        """Ask once with POST."""
        return await self._ask("POST", path, payload, timeout_s)

    async def post_patiently(self, path: str, payload: Any) -> Reply:
        """Ask with POST until an answer comes that would not change, or patience ends; return the last reply.

        A server that asks to be left alone for longer than an answer may take has given its last reply.
        """
        for attempt in range(self._patience.max_retries):
            reply = await self.post(path, payload)
            if not reply.may_pass or reply.retry_after_s > self._patience.timeout_s:
                return reply
            await asyncio.sleep(self._patience.pause_s(attempt, reply.retry_after_s))
        return await self.post(path, payload)

    async def close(self) -> None:
        """Close all connections; safe to call more than once."""
        await self._client.aclose()

    async def _ask(self, method: str, path: str, payload: Any, timeout_s: float | None) -> Reply:
        reply, is_stale = await self._ask_once(method, path, payload, timeout_s)
        # A server may close a connection it has kept, just as the next question is on its way: that says nothing.
        return (await self._ask_once(method, path, payload, timeout_s))[0] if is_stale else reply

    async def _ask_once(self, method: str, path: str, payload: Any, timeout_s: float | None) -> tuple[Reply, bool]:
        """Return the reply, and whether only the connection broke."""
        begun = time.monotonic()
        limit = httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            # The client's own timeout counts the silence between two pieces of an answer; this one, the whole of it.
            async with asyncio.timeout(self._patience.timeout_s if timeout_s is None else timeout_s):
                answer = await self._client.request(method, self.url + path, json=payload, timeout=limit)
        except (TimeoutError, httpx.TimeoutException) as error:
            is_down = isinstance(error, httpx.ConnectTimeout)
            return Reply(None, {}, f"no answer within {time.monotonic() - begun:.1f} s", is_down=is_down), False
        except httpx.TransportError as error:
            reply = Reply(None, {}, f"{type(error).__name__}: {error}".rstrip(": "), is_down=True)
            return reply, not isinstance(error, httpx.ConnectError)
        return _read(answer), False


def _read(answer: httpx.Response) -> Reply:
    body, is_object = _object(answer.content)
    reason = ""
    if not answer.is_success:
        reason = f"status {answer.status_code}: {_complaint(body) or answer.text[:_LONGEST_REASON]}".rstrip(": ")
    elif not is_object and answer.content.strip():
        reason = f"status {answer.status_code}, but not a JSON object: {answer.text[:80]!r}"
    return Reply(answer.status_code, body, reason, retry_after_s(answer.headers))


def _object(content: bytes) -> tuple[Mapping[str, Any], bool]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}, False
    return (value, True) if isinstance(value, dict) else ({}, False)


def _complaint(body: Mapping[str, Any]) -> str:
    """What a server says of an error, in the shapes of OpenAI, FastAPI and others."""
    error = body.get("error", body)
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail") or ""
    return str(error)[:_LONGEST_REASON]


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds a server asks to wait, given as a number or as a date; 0 where it does not."""
    value = headers.get("retry-after", "").strip()
    try:
        return max(float(value), 0.0) if math.isfinite(float(value)) else 0.0
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return 0.0


def checked_url(url: str) -> str:
    """Return the URL of a server without a slash at its end.

    Raises:
        ConfigError: it is not one.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise ConfigError(f"{url!r}: expected the URL of a server, such as 'http://127.0.0.1:8000'")
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
