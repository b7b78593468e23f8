"""Every knob of the search server."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from srpo_envs.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """How a server listens, what it accepts and how long it tries.

    Raises:
        ConfigError: a value is out of its range.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Nobody is asked who they are: open it to a network only where that may read the corpus."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    default_top_k: int = 3
    """Passages for each query where a request does not say."""
    max_top_k: int = 100
    """Most passages a request may ask for; more is refused."""
    max_queries: int = 4096
    """Most queries of one request: Search-R1 sends those of a whole training batch at once."""
    max_query_chars: int = 10_000
    """Longest query in characters; longer ones are refused."""
    max_body_bytes: int = 32 * 2**20
    """Longest request in bytes."""
    max_batch: int = 64
    """Most queries that the engine searches in one call."""
    batch_wait_s: float = 0.002
    """How long a request waits for others to be searched with it while the engine is free."""
    num_workers: int = 1
    """Calls of the engine at the same time."""
    max_waiting: int = 8192
    """Most queries that may wait for the engine; what comes then is answered with 503."""
    request_timeout_s: float = 30.0
    """A request that is not answered by then is answered with 504; a client may ask for less."""
    retry_after_s: int = 1
    """What a 503 tells the client to wait."""
    shutdown_grace_s: float = 10.0
    """How long requests that are under way may take once the server was told to stop."""

    def __post_init__(self) -> None:
        zero_is_fine = ("port", "batch_wait_s", "retry_after_s", "shutdown_grace_s")
        for name in (item.name for item in fields(self) if item.name != "host"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (value == 0 and name not in zero_is_fine):
                raise ConfigError(f"{name}: expected more than 0{' or 0' * (name in zero_is_fine)}, got {value!r}")
        for small, large in (("default_top_k", "max_top_k"), ("max_queries", "max_waiting")):
            if getattr(self, small) > getattr(self, large):
                raise ConfigError(
                    f"{small} is {getattr(self, small)}: expected at most {large}, {getattr(self, large)}"
                )
