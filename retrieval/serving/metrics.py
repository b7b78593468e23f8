"""What a server tells Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ServerMetrics:
    """The metrics of one server, in a registry of their own, so that several servers fit into one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "srpo_retrieval_requests", "Answers of /retrieve by HTTP status.", ["status"], registry=self.registry
        )
        self.in_progress = Gauge(
            "srpo_retrieval_requests_in_progress", "Requests to /retrieve under way.", registry=self.registry
        )
        self.request_seconds = Histogram(
            "srpo_retrieval_request_seconds", "Time to answer /retrieve.", buckets=_SECONDS, registry=self.registry
        )
        self.batch_queries = Histogram(
            "srpo_retrieval_batch_queries",
            "Queries searched in one call of the engine.",
            buckets=_BATCH_SIZES,
            registry=self.registry,
        )
        self.search_seconds = Histogram(
            "srpo_retrieval_search_seconds",
            "Time of one call of the engine.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._waiting = Gauge(
            "srpo_retrieval_waiting_queries", "Queries that wait for the engine.", registry=self.registry
        )

    def watch_queue(self, num_waiting: Callable[[], float]) -> None:
        """Read the depth of the queue whenever the metrics are read."""
        self._waiting.set_function(num_waiting)

    def observe_batch(self, num_queries: int, seconds: float) -> None:
        """Count one call of the engine."""
        self.batch_queries.observe(num_queries)
        self.search_seconds.observe(seconds)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
