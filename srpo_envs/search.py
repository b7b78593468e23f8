"""What an environment knows of search: passages, what a retriever promises, and how one is found by its name.

The environments own the protocol and any search engine can implement it. A recipe names a retriever by a text::

    open_retriever("bm25:facts")                  # embedded BM25 over a shipped corpus
    open_retriever("lucene:indexes/wiki-18")      # an index of pyserini
    open_retriever("http://127.0.0.1:8000")       # a server that speaks Search-R1's protocol

The part before the colon is a scheme. A package brings schemes without being imported, by entry points of the group
``srpo_envs.retrievers``; a program adds its own with `register_retriever`.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from srpo_envs.errors import RegistrationError, RetrieverError, SrpoError, UnknownIdError, near_miss

_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character: no tokenizer and no file takes it

RETRIEVER_GROUP = "srpo_envs.retrievers"
"""Entry points of this group name a scheme and a `RetrieverFactory`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One unit of text that a search engine returns.

    Example:
        ``Passage(id="12", title="Peru", text="The capital of Peru is Lima.", score=7.31)``
    """

    id: str
    """Unique within its corpus."""
    title: str
    """What the passage is about; may be empty."""
    text: str
    """The words."""
    score: float = 0.0
    """How well it fits the query; only comparable within one retriever."""


class Retriever(Protocol):
    """A search engine."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the best passages of each query.

        Safe to call from several threads at once.

        Args:
            queries: Any texts; an empty one, or one of stop words only, finds nothing.
            top_k: Most passages for each query, at least 1.

        Returns:
            One list per query, in the order of the queries; best first, no passage twice, at most `top_k` long.

        Raises:
            ValueError: `top_k` below 1.
            RetrieverError: the engine cannot answer. Nothing found is an answer: an empty list.
        """
        ...


RetrieverFactory = Callable[[str], Retriever]
"""Opens a retriever from its location: the text after ``scheme:``, or the whole text where that is a URL."""

_factories: dict[str, RetrieverFactory] = {}
_opened: dict[tuple[int, str], Retriever] = {}
_locks: dict[str, threading.Lock] = {}
_table_lock = threading.Lock()


def register_retriever(scheme: str, factory: RetrieverFactory) -> None:
    """Make ``scheme:location`` known to `open_retriever`.

    Raises:
        RegistrationError: the scheme is taken or is not a plain word.
    """
    if not scheme.isalnum() or scheme != scheme.lower():
        raise RegistrationError(f"retriever scheme {scheme!r}: expected lower-case letters and digits, such as 'bm25'")
    if scheme in _schemes():
        raise RegistrationError(f"retriever scheme {scheme!r} is already registered")
    _factories[scheme] = factory


def open_retriever(spec: str) -> Retriever:
    """Return the retriever a text names; one process opens each only once and shares it between all its environments.

    Args:
        spec: ``scheme:location``, see the module's example.

    Raises:
        UnknownIdError: no such scheme; the message names the nearest.
        SrpoError: whatever the factory raises: a missing index, an extra that is not installed.
    """
    key = (os.getpid(), spec)  # a forked child must not share its parent's connections
    # Every search comes by here, and reading the installed packages' entry points takes milliseconds.
    if (opened := _opened.get(key)) is not None:
        return opened
    with _table_lock:
        lock = _locks.setdefault(spec, threading.Lock())
    with lock:
        if key not in _opened:
            _opened[key] = _open(spec)
        return _opened[key]


def _open(spec: str) -> Retriever:
    scheme, colon, location = spec.partition(":")
    factories = _schemes()
    if not colon or scheme not in factories:
        raise UnknownIdError(
            f"no retriever {spec!r}: expected scheme:location with a known scheme{near_miss(scheme, factories)}"
        )
    factory = factories[scheme]
    if not callable(factory):
        factory = factory.load()
    opened: Retriever = factory(spec if location.startswith("//") else location)
    return opened


def close_retriever(retriever: Retriever) -> None:
    """Close a retriever, where it can be closed."""
    getattr(retriever, "close", lambda: None)()


def close_retrievers() -> None:
    """Close every retriever that this process opened by name; the next `open_retriever` opens anew."""
    with _table_lock:
        own = [key for key in _opened if key[0] == os.getpid()]
        closing = [_opened.pop(key) for key in own]
    for retriever in closing:
        close_retriever(retriever)


def search_all(retriever: Retriever, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
    """Search, and hold the answer against the protocol, so that a failure never passes for 'nothing found'.

    Raises:
        RetrieverError: the retriever failed, or answered with something else than it promises.
    """
    try:
        found = retriever.search(queries, top_k)
    except SrpoError:
        raise
    except Exception as error:  # engines and their clients raise whatever their libraries do
        raise RetrieverError(f"search of {len(queries)} queries failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, list) or len(found) != len(queries):
        raise RetrieverError(
            f"search of {len(queries)} queries: expected as many lists of passages, got {found!r:.200}"
        )
    for query, passages in zip(queries, found, strict=True):
        if not is_answer(passages, top_k):
            raise RetrieverError(
                f"search for {query!r:.80}: expected a list of at most {top_k} distinct passages, got {passages!r:.200}"
            )
    return found


def is_answer(passages: object, top_k: int) -> bool:
    """Whether one query's answer is what `Retriever.search` promises: passages whose texts are valid Unicode."""
    return (
        isinstance(passages, list)
        and len(passages) <= top_k
        and all(isinstance(passage, Passage) and _is_whole(passage) for passage in passages)
        and len({passage.id for passage in passages}) == len(passages)
    )


def _is_whole(passage: Passage) -> bool:
    texts = (passage.id, passage.title, passage.text)
    is_number = isinstance(passage.score, (int, float)) and math.isfinite(passage.score)
    return is_number and all(isinstance(text, str) and not _SURROGATE.search(text) for text in texts)


class ScriptedRetriever:
    """A retriever with fixed answers, for tests and examples.

    Args:
        answers: Passages by query; every other query finds nothing.

    Example:
        ``ScriptedRetriever({"capital of Peru": [Passage(id="1", title="Peru", text="... Lima.")]})``
    """

    def __init__(self, answers: Mapping[str, Sequence[Passage]]) -> None:
        self._answers = {query: list(passages) for query, passages in answers.items()}
        self.queries: list[str] = []
        """Every query so far, in order."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return the first `top_k` scripted passages of each query."""
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        self.queries.extend(queries)
        return [self._answers.get(query, [])[:top_k] for query in queries]


def _schemes() -> dict[str, Any]:
    """Factories, or the entry points that load them, by scheme."""
    installed = {entry.name: entry for entry in importlib.metadata.entry_points(group=RETRIEVER_GROUP)}
    return {**installed, **_factories}
