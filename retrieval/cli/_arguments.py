"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

RetrieverName = Annotated[
    str,
    typer.Argument(
        metavar="RETRIEVER",
        help="An index folder, a name such as bm25:facts or hybrid:bm25:A+dense:B, or the URL of a server.",
    ),
]
TopK = Annotated[int, typer.Option(min=1, help="Passages for each query.")]
