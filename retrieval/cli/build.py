"""``srpo retrieval build``: an index of a corpus file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from retrieval.progress import OnProgress


class Engine(StrEnum):
    """What is built."""

    BM25 = "bm25"
    LUCENE = "lucene"
    DENSE = "dense"


class Pooling(StrEnum):
    """How token vectors become one."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"


class Graph(StrEnum):
    """How a dense index searches."""

    FLAT = "flat"
    HNSW = "hnsw"


def build(
    corpus: Annotated[Path, typer.Argument(help="JSON Lines, also .gz: id and contents, or id, title and text.")],
    index: Annotated[Path, typer.Argument(help="Folder to write; an index that is there is replaced at the end.")],
    engine: Annotated[Engine, typer.Option(help="Embedded BM25, Lucene (extra lucene) or vectors (extra dense).")] = (
        Engine.BM25
    ),
    k1: Annotated[float, typer.Option(help="bm25: saturation of term counts.")] = 0.9,
    b: Annotated[float, typer.Option(help="bm25: weight of the passage length.")] = 0.4,
    model: Annotated[str, typer.Option(help="dense: encoder, a hub id or directory.")] = "intfloat/e5-base-v2",
    query_prefix: Annotated[str, typer.Option(help="dense: put before every query.")] = "query: ",
    passage_prefix: Annotated[str, typer.Option(help="dense: put before every passage.")] = "passage: ",
    pooling: Annotated[Pooling, typer.Option(help="dense: how token vectors become one.")] = Pooling.MEAN,
    max_length: Annotated[int, typer.Option(min=1, help="dense: tokens of a text that are read.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="dense: texts encoded at once.")] = 64,
    device: Annotated[str, typer.Option(help="dense: cpu, cuda, cuda:1 or auto.")] = "auto",
    graph: Annotated[Graph, typer.Option(help="dense: exact, or an approximate graph.")] = Graph.FLAT,
) -> None:
    """Build an index of a corpus. A dense build that was interrupted goes on where it was."""
    from rich.console import Console

    from retrieval.progress import progress_bar

    encoder = {
        "model": model,
        "query_prefix": query_prefix,
        "passage_prefix": passage_prefix,
        "pooling": pooling.value,
        "max_length": max_length,
        "batch_size": batch_size,
        "device": device,
    }
    begun = time.monotonic()
    with progress_bar() as on_progress:
        if engine is Engine.DENSE:
            _build_dense(corpus, index, encoder, graph, on_progress)
        elif engine is Engine.LUCENE:
            from retrieval.lucene import build_lucene_index

            build_lucene_index(corpus, index, on_progress=on_progress)
        else:
            from retrieval.bm25 import Bm25Index

            Bm25Index.build(corpus, index, k1=k1, b=b, on_progress=on_progress)
    size = sum(file.stat().st_size for file in index.rglob("*") if file.is_file())
    Console().print(f"{index}: {engine} index, {size / 2**20:.1f} MiB, {time.monotonic() - begun:.1f} s")


def _build_dense(corpus: Path, index: Path, encoder: Mapping[str, Any], graph: Graph, on_progress: OnProgress) -> None:
    from retrieval.dense.encoders import EncoderSettings
    from retrieval.dense.index import build_dense_index

    build_dense_index(corpus, index, EncoderSettings(**encoder), kind=graph.value, on_progress=on_progress)
