"""``srpo retrieval search``: ask any retriever from the terminal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.cli._arguments import RetrieverName, TopK

if TYPE_CHECKING:
    from srpo_envs.search import Passage


def search(
    retriever: RetrieverName,
    queries: Annotated[
        list[str] | None, typer.Argument(help="What to search for; lines of the standard input when omitted.")
    ] = None,
    top_k: TopK = 3,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each query.")] = False,
) -> None:
    """Search an index or a server and show the passages with their scores."""
    from retrieval.opening import open_any
    from srpo_envs.search import close_retrievers, search_all

    asked = queries or [line.strip() for line in sys.stdin if line.strip()]
    try:
        found = search_all(open_any(retriever), asked, top_k)
    finally:
        close_retrievers()
    for query, passages in zip(asked, found, strict=True):
        if is_json:
            typer.echo(json.dumps({"query": query, "passages": [_row(item) for item in passages]}, ensure_ascii=False))
        else:
            _show(query, passages)


def _row(passage: Passage) -> dict[str, str | float]:
    return {"id": passage.id, "title": passage.title, "text": passage.text, "score": passage.score}


def _show(query: str, passages: list[Passage]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(
        Column("score", justify="right"), "id", "title", "text", box=None, header_style="bold", pad_edge=False
    )
    for passage in passages:
        table.add_row(f"{passage.score:.4f}", Text(passage.id), Text(passage.title), Text(passage.text))
    console = Console()
    console.print(Text(query, style="bold cyan"))
    console.print(table if passages else "nothing found")
