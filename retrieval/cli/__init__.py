"""``srpo retrieval``: build an index, search it, serve it, measure it; heavy imports inside the commands."""

from __future__ import annotations

import typer

from retrieval.cli.bench import bench
from retrieval.cli.build import build
from retrieval.cli.search import search
from retrieval.cli.serve import serve

__all__ = ["app"]

app = typer.Typer(
    help="Search engines: build an index, search it, serve it, measure it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def _examples(*commands: str) -> str:
    """The epilog of a command: examples that can be copied."""
    return "Examples:\n\n" + "\n\n".join(f"`srpo retrieval {command}`" for command in commands)


app.command(
    "build",
    epilog=_examples(
        "build corpus.jsonl indexes/bm25",
        "build corpus.jsonl.gz indexes/lucene --engine lucene",
        "build corpus.jsonl indexes/e5 --engine dense --model intfloat/e5-base-v2 --device cuda",
    ),
)(build)
app.command(
    "search",
    epilog=_examples(
        'search bm25:facts "capital of Peru"',
        'search indexes/bm25 "capital of Peru" "currency of Chad" --top-k 5 --json',
        'search http://127.0.0.1:8000 "capital of Peru"',
    ),
)(search)
app.command(
    "serve",
    epilog=_examples("serve bm25:facts", "serve indexes/e5 --port 9000", "serve hybrid:bm25:indexes/a+dense:indexes/b"),
)(serve)
app.command("bench", epilog=_examples("bench bm25:facts", "bench http://127.0.0.1:8000 --num-clients 64"))(bench)
