"""Record what a retriever answers, and replay it: an experiment runs again without its search server.

    RecordingRetriever(HttpRetriever(url), "run/search.jsonl")      # asks, and writes every new answer down
    TapeRetriever.open("run/search.jsonl")                          # answers from the file alone

A tape is a file of JSON lines: a header with the fingerprint of the index, then one line for each query and number of
passages. A line is written by one system call and whole or not at all for every reader; the last one may be cut short
by a crash, and is then left out and overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self

from retrieval.engine import fingerprint_of, num_passages_of
from srpo_envs.errors import RecordError, RetrieverError, SchemaVersionError, SearchIndexError
from srpo_envs.search import Passage, Retriever, close_retriever, is_answer, search_all

_KIND = "srpo-search-tape"
_VERSION = 1


_Key = tuple[str, int]
"""A query, and how many passages were asked for."""
_Answers = dict[_Key, list[Passage]]


class RecordingRetriever:
    """Passes searches on and writes down what was not on the tape before; failures are not recorded.

    Safe to share between threads, and with children that are forked later.

    Args:
        inner: Who answers.
        path: The tape; one that exists is continued.

    Raises:
        SearchIndexError: the tape was recorded from another index.
        RecordError: the file is damaged, no tape, or cannot be written.
    """

    def __init__(self, inner: Retriever, path: str | os.PathLike[str]) -> None:
        self._inner = inner
        self._path = Path(path)
        self.fingerprint = fingerprint_of(inner)
        """That of the retriever that answers."""
        try:
            self._recorded = set(self._continue())
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise RecordError(f"tape {str(path)!r} cannot be written: {error}") from error

    @property
    def num_passages(self) -> int:
        """How many passages the retriever that answers holds; 0 where it does not say."""
        return num_passages_of(self._inner)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return what the inner retriever answers.

        Raises:
            ValueError: `top_k` below 1.
            RetrieverError: the inner retriever fails, or the tape cannot be written.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        found = search_all(self._inner, queries, top_k)
        for query, passages in zip(queries, found, strict=True):
            if (query, top_k) not in self._recorded:
                self._append({"query": query, "top_k": top_k, "passages": [asdict(passage) for passage in passages]})
                self._recorded.add((query, top_k))
        return found

    def close(self) -> None:
        """Close the tape, and the inner retriever where it can be closed."""
        self._file.close()
        close_retriever(self._inner)

    def _continue(self) -> _Answers:
        """Begin a tape, or cut off what a crash left of its last line; return what is recorded."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        header = {"kind": _KIND, "version": _VERSION, "fingerprint": self.fingerprint}
        if not self._path.exists() or _is_cut_header(self._path.read_bytes()):
            self._path.write_bytes(_json_line(header))
        tape = _read(self._path)
        if tape.fingerprint != self.fingerprint:
            raise SearchIndexError(
                f"tape {str(self._path)!r} was recorded from index {tape.fingerprint!r}, "
                f"this retriever searches {self.fingerprint!r}; record to another file"
            )
        if tape.num_bytes < self._path.stat().st_size:
            os.truncate(self._path, tape.num_bytes)
        return tape.answers

    def _append(self, row: Mapping[str, Any]) -> None:
        line = _json_line(row)
        try:
            written = self._file.write(line)
        except (OSError, ValueError) as error:  # ValueError: the tape is closed
            raise RetrieverError(f"tape {str(self._path)!r} cannot be written: {error}") from error
        if written != len(line):
            self._file.close()  # so that the half line stays the last one
            raise RetrieverError(f"tape {str(self._path)!r}: {written} of {len(line)} bytes fit; is the disk full?")


class TapeRetriever:
    """Answers from a tape, and fails for what is not on it.

    Args:
        answers: Passages by query and number of passages asked for.
        fingerprint: Index the tape was recorded from.
        name: How messages call the tape.
    """

    def __init__(self, answers: Mapping[tuple[str, int], list[Passage]], fingerprint: str, name: str) -> None:
        self._answers = answers
        self._name = name
        self.fingerprint = fingerprint
        """Index the tape was recorded from."""
        self.num_passages = len({passage.id for passages in self._answers.values() for passage in passages})
        """Different passages on the tape."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read a tape into memory; the last line may be cut short.

        Raises:
            RecordError: the file is missing, damaged, or no tape; names file and line.
            SchemaVersionError: a newer version wrote it.
        """
        tape = _read(Path(path))
        return cls(tape.answers, tape.fingerprint, str(path))

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Return what was recorded.

        Raises:
            ValueError: `top_k` below 1.
            RetrieverError: a query was never recorded with this `top_k`.
        """
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        return [list(self._recorded(query, top_k)) for query in queries]

    def close(self) -> None:
        """Do nothing: all is in memory."""

    def _recorded(self, query: str, top_k: int) -> list[Passage]:
        if (query, top_k) in self._answers:
            return self._answers[query, top_k]
        others = sorted(other_k for other, other_k in self._answers if other == query)
        hint = f"; it was recorded with top_k {', '.join(map(str, others))}" if others else ""
        raise RetrieverError(f"tape {self._name!r}: {query!r} was never recorded with top_k {top_k}{hint}")


class _Tape(NamedTuple):
    answers: _Answers
    fingerprint: str
    num_bytes: int
    """Length without what a crash left of the last line."""


def _read(path: Path) -> _Tape:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"tape {str(path)!r} cannot be read: {error}") from error
    whole = data[: data.rfind(b"\n") + 1]
    rows = [_row(line, f"{str(path)!r}, line {number}") for number, line in enumerate(whole.splitlines(), start=1)]
    header = rows[0] if rows else {}
    if header.get("kind") != _KIND:
        raise RecordError(f"{str(path)!r} is no tape: expected a first line with the kind {_KIND!r}")
    if header.get("version") != _VERSION:
        raise SchemaVersionError(
            f"tape {str(path)!r} has version {header.get('version')!r}, this program reads {_VERSION}; "
            "update it, or record again"
        )
    answers = dict(_answer_of(row, f"{str(path)!r}, line {number}") for number, row in enumerate(rows[1:], start=2))
    return _Tape(answers, str(header.get("fingerprint", "")), len(whole))


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise RecordError(f"{where}: expected an object, got {type(row).__name__}")
    return row


def _answer_of(row: dict[str, Any], where: str) -> tuple[_Key, list[Passage]]:
    try:
        query, top_k, passages = row["query"], row["top_k"], [Passage(**fields) for fields in row["passages"]]
    except (KeyError, TypeError) as error:
        raise RecordError(f"{where}: expected 'query', 'top_k' and 'passages': {error}") from error
    if not isinstance(query, str) or not isinstance(top_k, int) or not is_answer(passages, top_k):
        raise RecordError(f"{where}: expected a query and at most 'top_k' distinct passages, got {row!r:.200}")
    return (query, top_k), passages


def _is_cut_header(data: bytes) -> bool:
    """Whether a crash cut a tape within its first line; any other file without a line is somebody else's."""
    begin = _json_line({"kind": _KIND})[:-2]
    return b"\n" not in data and (data.startswith(begin) or begin.startswith(data))


def _json_line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
