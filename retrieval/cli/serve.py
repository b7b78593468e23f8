"""``srpo retrieval serve``: any retriever behind Search-R1's protocol."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from retrieval.cli._arguments import RetrieverName


def serve(
    retriever: RetrieverName,
    host: Annotated[str, typer.Option(help="Address to listen on; nobody is asked who they are.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    max_top_k: Annotated[int, typer.Option(min=1, help="Most passages for each query.")] = 100,
    max_query_chars: Annotated[int, typer.Option(min=1, help="Longest query.")] = 10_000,
    max_waiting: Annotated[int, typer.Option(min=1, help="Queries that may wait; what comes then gets 503.")] = 8192,
    request_timeout_s: Annotated[
        float, typer.Option(min=0.001, help="A request not answered by then gets 504.")
    ] = 30.0,
    num_workers: Annotated[int, typer.Option(min=1, help="Calls of the engine at the same time.")] = 1,
    cache: Annotated[int, typer.Option(min=0, help="Queries whose answers are kept in memory; 0 keeps none.")] = 0,
) -> None:
    """Serve POST /retrieve, GET /health and GET /metrics until Ctrl-C or SIGTERM."""
    from retrieval.opening import open_any
    from retrieval.server import ServerSettings
    from retrieval.server import serve as run
    from srpo_envs.search import Retriever

    logging.getLogger("retrieval").setLevel(logging.INFO)  # a server says where it listens and when it is ready
    settings = ServerSettings(
        host=host,
        port=port,
        max_top_k=max_top_k,
        max_query_chars=max_query_chars,
        max_queries=min(4096, max_waiting),
        max_waiting=max_waiting,
        request_timeout_s=request_timeout_s,
        num_workers=num_workers,
    )

    def open_it() -> Retriever:
        opened = open_any(retriever)
        if cache:
            from retrieval.cache import CachedRetriever

            opened = CachedRetriever(opened, max_queries=cache)
        return opened

    run(open_it, settings)
