r"""What goes over the wire between a search server and its clients: the answers of Search-R1's ``POST /retrieve``.

A request is ``{"queries": ["..."], "topk": 3, "return_scores": true}``. The answer holds one list for each query::

    {"result": [[{"document": {"id": "7", "title": "Peru", "text": "...", "contents": "\"Peru\"\n..."}, "score": 9.1}]]}

and without scores the documents alone: ``{"result": [[{"id": "7", ...}]]}``. Clients of Search-R1, verl and Dr. MAS
read ``contents``; other servers of this protocol may leave out ``id``, or ``title`` and ``text``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from retrieval.corpus import contents_of, split_contents
from srpo_envs.errors import RetrieverError
from srpo_envs.search import Passage

TIMEOUT_HEADER = "x-timeout-s"
"""How long the client waits for the answer, in seconds; after that the server need not search any more."""
FINGERPRINT_HEADER = "x-index-fingerprint"
"""Which index answered."""


def render_answer(found: Sequence[Sequence[Passage]], *, with_scores: bool) -> bytes:
    """Return the body of an answer.

    Raises:
        ValueError: a score is not finite, or a text is not valid Unicode.
    """
    result = [[_rendered(passage, with_scores) for passage in passages] for passages in found]
    return json.dumps({"result": result}, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _rendered(passage: Passage, with_scores: bool) -> dict[str, Any]:
    document = {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "contents": contents_of(passage),
    }
    return {"document": document, "score": float(passage.score)} if with_scores else document


def read_answer(body: bytes, num_queries: int, top_k: int) -> list[list[Passage]]:
    """Read the body of an answer, of this server or of another one that speaks the protocol.

    A document without an id gets one from its contents. Of a document that comes twice for one query the first counts:
    Search-R1's dense server fills up with the last passage of its corpus where it found fewer than `top_k`.

    Raises:
        RetrieverError: the body is something else; the message says what.
    """
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RetrieverError(f"expected JSON, got {_shown(body)}") from error
    result = payload.get("result") if isinstance(payload, dict) else None
    if not isinstance(result, list) or not all(isinstance(row, list) for row in result):
        raise RetrieverError(f"expected a 'result' of one list for each query, got {_shown(body)}")
    if len(result) != num_queries:
        raise RetrieverError(f"expected {num_queries} lists of documents, got {len(result)}")
    return [_read_row(row, top_k) for row in result]


def _read_row(row: list[Any], top_k: int) -> list[Passage]:
    passages = [_read_item(item) for item in row]
    if len(passages) > top_k:
        raise RetrieverError(f"expected at most {top_k} documents for each query, got {len(passages)}")
    return list({passage.id: passage for passage in reversed(passages)}.values())[::-1]


def _read_item(item: Any) -> Passage:
    has_score = isinstance(item, Mapping) and "document" in item
    document, score = (item["document"], item.get("score", 0.0)) if has_score else (item, 0.0)
    if not isinstance(score, int | float) or isinstance(score, bool) or not abs(score) <= sys.float_info.max:
        raise RetrieverError(f"expected a finite score, got {_shown(score)}")
    title, text = _title_and_text(document)
    identity = document.get("id", _digest(title, text))
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise RetrieverError(f"expected the id of a document as a text or number, got {_shown(identity)}")
    return Passage(id=str(identity), title=title, text=text, score=float(score))


def _title_and_text(document: Any) -> tuple[str, str]:
    if isinstance(document, Mapping):
        title, text, contents = (document.get(name) for name in ("title", "text", "contents"))
        if isinstance(title, str) and isinstance(text, str):
            return title, text
        if isinstance(contents, str):
            return split_contents(contents)
    raise RetrieverError(f"expected a document with 'contents', or with 'title' and 'text', got {_shown(document)}")


def _digest(title: str, text: str) -> str:
    return hashlib.sha256(f"{title}\n{text}".encode(errors="surrogatepass")).hexdigest()[:16]


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    shown = repr(value)
    return shown if len(shown) <= 120 else shown[:117] + "..."
