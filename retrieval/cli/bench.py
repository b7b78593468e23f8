"""``srpo retrieval bench``: how fast a retriever answers on this machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.cli._arguments import RetrieverName, TopK

if TYPE_CHECKING:
    from srpo_envs.search import Retriever


def bench(
    retriever: RetrieverName,
    queries: Annotated[
        Path | None, typer.Option(help="One query a line; the titles of passages that were found when omitted.")
    ] = None,
    num_requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 2000,
    num_clients: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 8,
    batch: Annotated[int, typer.Option(min=1, help="Queries of one request.")] = 1,
    top_k: TopK = 3,
) -> None:
    """Measure throughput and latency with several clients at once."""
    from rich.console import Console
    from rich.table import Table

    from retrieval.opening import open_any
    from srpo_envs.errors import RetrieverError
    from srpo_envs.search import close_retrievers

    try:
        opened = open_any(retriever)
        asked = _read_queries(queries) if queries else _collect_queries(opened)
        failures, waits_s, total_s = _measure(opened, asked, num_requests, num_clients, batch, top_k)
    finally:
        close_retrievers()
    table = Table("measure", "value", box=None, header_style="bold", pad_edge=False)
    for name, value in (
        ("requests", f"{num_requests} by {num_clients} clients, {batch} queries each"),
        ("failed", str(len(failures))),
        ("queries per second", f"{len(waits_s) * batch / total_s:,.0f}"),
        ("p50", f"{1000 * _quantile(waits_s, 0.5):.2f} ms"),
        ("p99", f"{1000 * _quantile(waits_s, 0.99):.2f} ms"),
    ):
        table.add_row(name, value)
    Console().print(table)
    if failures:
        raise RetrieverError(f"{len(failures)} of {num_requests} requests failed, the first one: {failures[0]}")


def _read_queries(file: Path) -> list[str]:
    from srpo_envs.errors import ConfigError

    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--queries {str(file)!r} cannot be read: {error}") from error
    if not any(lines):
        raise ConfigError(f"--queries {str(file)!r} holds no query; expected one on each line")
    return [line for line in lines if line]


def _collect_queries(retriever: Retriever, most: int = 200) -> list[str]:
    """Walk the corpus by its own titles, from common words on."""
    titles: dict[str, None] = {}
    waiting = ["name", "first", "city", "century", "person"]
    while waiting and len(titles) < most:
        for passages in retriever.search(waiting[:50], 10):
            titles.update(dict.fromkeys(passage.title or passage.text[:60] for passage in passages))
        waiting = [title for title in itertools.islice(titles, most) if title not in waiting][-50:]
    return list(titles) or ["name"]


def _measure(
    retriever: Retriever, queries: Sequence[str], num_requests: int, num_clients: int, batch: int, top_k: int
) -> tuple[list[str], list[float], float]:
    """Return why requests failed, seconds of each that succeeded, and seconds of the whole."""
    from rich.progress import Progress

    from srpo_envs.errors import RetrieverError

    failures: list[str] = []
    waits_s: list[float] = []

    def ask(number: int) -> None:
        words = [queries[(number * batch + offset) % len(queries)] for offset in range(batch)]
        begun = time.monotonic()
        try:
            retriever.search(words, top_k)
        except RetrieverError as error:
            failures.append(str(error))
        else:
            waits_s.append(time.monotonic() - begun)

    begun = time.monotonic()
    with Progress() as bar, ThreadPoolExecutor(num_clients) as clients:
        for _ in bar.track(clients.map(ask, range(num_requests)), total=num_requests, description="requests"):
            pass
    return failures, waits_s, time.monotonic() - begun


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")
