"""A retriever at the other end of a network: the client of the search server, and of others with its protocol."""

from __future__ import annotations

import email.utils
import inspect
import ipaddress
import json
import logging
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl

from retrieval.serving.protocol import FINGERPRINT_HEADER, TIMEOUT_HEADER, read_answer
from srpo_envs.errors import ConfigError, MissingExtraError, RequestRejectedError, RetrieverError, near_miss
from srpo_envs.search import Passage

try:
    import httpx
except ModuleNotFoundError as _error:
    raise MissingExtraError("httpx", "retrieval") from _error

logger = logging.getLogger(__name__)

_Number = TypeVar("_Number", int, float)

_RETRIED = (408, 425, 429)
"""Client errors that pass by themselves; every server error is retried too."""
_IDLE_S = 30.0
"""How long an unused connection is kept, less than servers keep it."""


class _Answer(NamedTuple):
    """What came back from one try."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpRetriever:
    """Asks a search server; safe to share between threads, and usable in forked children.

    A try that meets a connection error, a timeout, a 5xx, 429 or 408 is repeated after a pause that doubles each time,
    with jitter, and is at least as long as the server asks for in ``Retry-After``. A server that comes back with
    another index than before is an error: it would change an experiment without a word.

    Args:
        url: The server, with or without ``/retrieve`` at the end.
        timeout_s: Longest wait for the answer to one try.
        connect_timeout_s: Longest wait for a connection.
        total_timeout_s: Longest time of a whole search with its retries and pauses.
        max_retries: Tries after the first.
        first_pause_s: Pause before the first retry.
        longest_pause_s: Longest pause, unless the server asks for more.
        max_queries: Most queries of one request; a longer search is cut into several.
        max_connections: Most connections at a time; further threads wait for one.

    Raises:
        ConfigError: the URL is not one, or a number is out of range.

    Example:
        ``HttpRetriever("http://127.0.0.1:8000", timeout_s=5).search(["capital of Peru"], top_k=3)``
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 3.0,
        total_timeout_s: float = 50.0,
        max_retries: int = 10,
        first_pause_s: float = 0.1,
        longest_pause_s: float = 5.0,
        max_queries: int = 128,
        max_connections: int = 64,
    ) -> None:
        self.url = _checked_url(url)
        self._timeout_s = _at_least(0.001, timeout_s=timeout_s)
        self._connect_timeout_s = _at_least(0.001, connect_timeout_s=connect_timeout_s)
        self._total_timeout_s = _at_least(0.001, total_timeout_s=total_timeout_s)
        self._max_retries = _at_least(0, max_retries=max_retries)
        self._first_pause_s = _at_least(0.0, first_pause_s=first_pause_s)
        self._longest_pause_s = _at_least(0.0, longest_pause_s=longest_pause_s)
        self._max_queries = _at_least(1, max_queries=max_queries)
        self._max_connections = _at_least(1, max_connections=max_connections)
        self._jitter = random.SystemRandom()  # forked children must not pause in step
        self._clients: dict[int, httpx.Client] = {}
        self._health: Mapping[str, Any] | None = None
        self._fingerprint = ""

    @classmethod
    def open(cls, location: str) -> Self:
        """Make one from a URL whose query holds arguments: ``http://127.0.0.1:8000?timeout_s=5&max_retries=3``.

        Raises:
            ConfigError: an unknown argument, or a value that is not a number.
        """
        url, _, query = location.partition("?")
        parameters = inspect.signature(cls).parameters.values()
        defaults = {item.name: item.default for item in parameters if item.kind is item.KEYWORD_ONLY}
        arguments: dict[str, Any] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name not in defaults:
                raise ConfigError(f"{location!r}: unknown setting {name!r}{near_miss(name, defaults)}")
            try:
                arguments[name] = type(defaults[name])(value)
            except ValueError as error:
                example = f"{name}={defaults[name]}"
                raise ConfigError(f"{location!r}: expected a number as in {example!r}, got {value!r}") from error
        return cls(url, **arguments)

    @property
    def fingerprint(self) -> str:
        """Which index the server searches; empty where it does not say.

        Raises:
            RetrieverError: the server does not answer.
        """
        if not self._fingerprint:
            self._check_index(str(self._server().get("fingerprint") or ""))
        return self._fingerprint

    @property
    def num_passages(self) -> int:
        """How many passages the server searches; 0 where it does not say.

        Raises:
            RetrieverError: the server does not answer.
        """
        return int(self._server().get("num_passages") or 0)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the best passages of each query.

        Raises:
            ValueError: `top_k` below 1.
            RequestRejectedError: the server refuses the request as wrong; the message holds its reason.
            RetrieverError: no usable answer within the retries and the total time.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        deadline = time.monotonic() + self._total_timeout_s
        most = self._most_queries(deadline) if len(queries) > 1 else 1
        found: list[list[Passage]] = []
        for start in range(0, len(queries), most):
            found += self._search_part(queries[start : start + most], top_k, deadline)
        return found

    def wait_until_ready(self, timeout_s: float = 600.0) -> None:
        """Wait until the server answers searches; one without ``/health`` is ready once it answers anything.

        Raises:
            RetrieverError: it does not within `timeout_s`; the message holds the last reason.
        """
        self._ask("GET", "/health", time.monotonic() + timeout_s, max_retries=math.inf)

    def close(self) -> None:
        """Close this process's connections; a later search opens new ones."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _search_part(self, queries: Sequence[str], top_k: int, deadline: float) -> list[list[Passage]]:
        request = {"queries": list(queries), "topk": top_k, "return_scores": True}
        answer = self._ask("POST", "/retrieve", deadline, body=json.dumps(request).encode())
        if 400 <= answer.status < 500:
            raise RequestRejectedError(f"{self.url} refuses the request: {_reason(answer)}")
        try:
            if answer.status != 200:
                raise RetrieverError(f"expected status 200, got {answer.status}")
            self._check_index(answer.headers.get(FINGERPRINT_HEADER, ""))
            return read_answer(answer.body, len(queries), top_k)
        except RetrieverError as error:
            raise RetrieverError(f"{self.url}: unusable answer: {error}") from error

    def _check_index(self, fingerprint: str) -> None:
        if self._fingerprint and fingerprint and fingerprint != self._fingerprint:
            raise RetrieverError(
                f"the index changed from {self._fingerprint!r} to {fingerprint!r}; "
                "start the server with the index of before, or begin anew"
            )
        self._fingerprint = fingerprint or self._fingerprint

    def _most_queries(self, deadline: float) -> int:
        """Queries of one request: as many as the caller and the server allow."""
        try:
            return min(self._max_queries, int(self._server(deadline).get("max_queries") or self._max_queries))
        except RetrieverError:  # the search itself will tell
            return self._max_queries

    def _server(self, deadline: float | None = None) -> Mapping[str, Any]:
        """What the server says of itself, asked once; empty where it has no ``/health``."""
        if self._health is None:
            answer = self._ask("GET", "/health", deadline or time.monotonic() + self._total_timeout_s)
            self._health = _object(answer.body) if answer.status == 200 else {}
        return self._health

    def _ask(
        self, method: str, path: str, deadline: float, *, body: bytes = b"", max_retries: float | None = None
    ) -> _Answer:
        """Return the first answer that another try would not better."""
        start, num_tries = time.monotonic(), 0
        most_tries = 1 + (self._max_retries if max_retries is None else max_retries)
        while True:
            num_tries += 1
            asked_s = 0.0
            try:
                answer = self._try(method, path, body, deadline)
                if answer.status < 500 and answer.status not in _RETRIED:
                    return answer
                reason, asked_s = _reason(answer), _retry_after_s(answer.headers)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            except httpx.HTTPError as error:
                raise RetrieverError(f"{self.url}: unusable answer: {type(error).__name__}: {error}") from error
            pause_s = max(self._pause_s(num_tries), asked_s)
            if num_tries >= most_tries or time.monotonic() + pause_s >= deadline:
                tries = f"{num_tries} {'try' if num_tries == 1 else 'tries'} in {time.monotonic() - start:.1f} s"
                raise RetrieverError(f"{self.url}: no answer after {tries}; the last reason: {reason}")
            logger.info("%s: trying again in %.2f s: %s", self.url, pause_s, reason)
            time.sleep(pause_s)

    def _try(self, method: str, path: str, body: bytes, deadline: float) -> _Answer:
        left_s = deadline - time.monotonic()
        timeout_s = max(min(self._timeout_s, left_s), 0.001)
        limits = httpx.Timeout(timeout_s, connect=min(self._connect_timeout_s, timeout_s), pool=max(left_s, 0.001))
        headers = {"Content-Type": "application/json", TIMEOUT_HEADER: f"{timeout_s:.3f}"}
        request = self._client().stream(method, self.url + path, content=body, headers=headers, timeout=limits)
        with request as response:
            end = time.monotonic() + timeout_s  # httpx limits the wait for each piece, not for all of them
            received = bytearray()
            for piece in response.iter_bytes():
                received += piece
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"the answer was not complete after {timeout_s:g} s")
            return _Answer(response.status_code, response.headers, bytes(received))

    def _pause_s(self, num_tries: int) -> float:
        longest_s = min(self._first_pause_s * 2.0 ** min(num_tries - 1, 60), self._longest_pause_s)
        return longest_s * self._jitter.uniform(0.5, 1.0)

    def _client(self) -> httpx.Client:
        """This process's connections: a forked child must not write into its parent's."""
        pid = os.getpid()
        client = self._clients.get(pid)
        return self._clients.setdefault(pid, self._new_client()) if client is None else client

    def _new_client(self) -> httpx.Client:
        limits = httpx.Limits(
            max_connections=self._max_connections,
            max_keepalive_connections=self._max_connections,
            keepalive_expiry=_IDLE_S,
        )
        url = httpx.URL(self.url)
        # A proxy cannot reach this machine's own loopback; certificates are only loaded where they are needed.
        return httpx.Client(limits=limits, trust_env=not _is_loopback(url.host), verify=url.scheme == "https")


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from error
    is_port = parsed.port is None or parsed.port < 2**16
    if parsed.scheme not in ("http", "https") or not parsed.host or not is_port or parsed.query or parsed.fragment:
        raise ConfigError(f"{url!r}: expected the URL of a search server, such as 'http://127.0.0.1:8000'")
    return url.rstrip("/").removesuffix("/retrieve").rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _at_least(least: _Number, **named: _Number) -> _Number:
    ((name, value),) = named.items()
    if not math.isfinite(value) or value < least:
        raise ConfigError(f"{name}: expected at least {least}, got {value}")
    return value


def _object(body: bytes) -> Mapping[str, Any]:
    """The JSON object in a body, empty where it holds something else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _reason(answer: _Answer) -> str:
    """Status and, where the server gives one, the reason."""
    detail = _object(answer.body).get("detail", "")
    return f"status {answer.status}{f': {detail}' * bool(detail)}"


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds that the server asks to wait, given as a number or as a date; 0 where it does not."""
    value = headers.get("retry-after", "0").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return 0.0
