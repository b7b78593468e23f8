r"""A corpus: passages read one at a time from JSON Lines, and the one text of a passage that every engine indexes.

Two kinds of rows are read, and a file may mix them::

    {"id": "12", "contents": "\"Peru\"\nThe capital of Peru is Lima."}            # Search-R1, pyserini
    {"id": "12", "title": "Peru", "text": "The capital of Peru is Lima."}
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from srpo_envs.errors import CorpusError
from srpo_envs.search import Passage

Corpus = str | os.PathLike[str] | Iterable[Passage]
"""A corpus file, or the passages themselves."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_corpus(path: str | os.PathLike[str]) -> Iterator[Passage]:
    r"""Yield the passages of a file in order, holding no more than their ids (about 100 bytes each) in memory.

    Args:
        path: ``.jsonl``, or the same compressed: ``.jsonl.gz``. Lines end in ``\n`` or ``\r\n``; blank lines are
            skipped; an id may be a text or a whole number and is unique.

    Raises:
        CorpusError: the file is missing, cut short, holds no passage, a damaged row, or an id twice; names file and
            line.
    """
    file = Path(path)
    if not file.is_file():
        raise CorpusError(f"no corpus at {str(file)!r}; give the path of a .jsonl or .jsonl.gz file")
    numbered = ((f"{str(file)!r}, line {number}", line) for number, line in enumerate(_lines(file), start=1))
    rows = ((where, _read_row(line, where)) for where, line in numbered if line.strip())
    yield from _checked(rows, str(file))


def iter_passages(corpus: Corpus) -> Iterator[Passage]:
    """Yield the passages of a corpus given either way, with the checks of `read_corpus`.

    Raises:
        CorpusError: as `read_corpus`; of passages that are given directly, the message counts from 1.
    """
    if isinstance(corpus, (str, os.PathLike)):
        return read_corpus(corpus)
    return _checked(((f"passage {number}", passage) for number, passage in enumerate(corpus, start=1)), "the corpus")


def contents_of(passage: Passage) -> str:
    """Return the text that engines index: the title in quotes on a line of its own, then the text."""
    return f'"{passage.title}"\n{passage.text}' if passage.title else passage.text


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text; the title is empty where the first of several lines is not in quotes."""
    head, newline, text = contents.partition("\n")
    if newline and len(head) >= 2 and head[0] == head[-1] == '"':
        return head[1:-1], text
    return "", contents


def row_of(passage: Passage) -> bytes:
    """Return a passage as one line of a corpus file, without its score."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def corpus_digest(passages: Iterable[Passage]) -> str:
    """Return the SHA-256 of the passages in their order, as hexadecimal digits; file format and compression are alike.

    It equals the digest of `retrieval.index_dir.PassageWriter`, which a build gets without reading the corpus twice.
    """
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(row_of(passage))
    return digest.hexdigest()


def _lines(file: Path) -> Iterator[bytes]:
    """Lines as bytes: splitting decoded text would cut at U+2028 inside a string."""
    try:
        with cast(BinaryIO, (gzip.open if file.suffix.lower() == ".gz" else open)(file, "rb")) as stream:
            yield stream.readline().removeprefix(_BYTE_ORDER_MARK)
            yield from stream
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{str(file)!r} cannot be read ({error}); was the download cut short?") from error


def _read_row(line: bytes, where: str) -> Passage:
    try:
        row = json.loads(line)
    except ValueError as error:  # not JSON, or not UTF-8
        raise CorpusError(f"{where}: not JSON ({error}); was the file cut short?") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: expected an object, got {type(row).__name__}")
    if "contents" in row:
        title, text = split_contents(_text_field(row, "contents", where))
    else:
        title, text = _text_field(row, "title", where), _text_field(row, "text", where)
    passage = Passage(id=_id_field(row, where), title=title, text=text)
    if b"\\u" in line and not _is_encodable(passage):
        raise CorpusError(f"{where}: holds half of a surrogate pair, which no file can hold; remove it")
    return passage


def _text_field(row: dict[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        found = f"{name} of type {type(value).__name__}" if name in row else f"the fields {sorted(row)}"
        raise CorpusError(
            f'{where}: expected texts in "id" and "contents", or in "id", "title" and "text"; got {found}'
        )
    return value


def _id_field(row: dict[str, Any], where: str) -> str:
    value = row.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise CorpusError(f'{where}: expected a text or a whole number in "id", got {value!r}')
    return value


def _is_encodable(passage: Passage) -> bool:
    try:
        row_of(passage)
    except UnicodeEncodeError:
        return False
    return True


def _checked(passages: Iterable[tuple[str, Passage]], corpus: str) -> Iterator[Passage]:
    """Pass on passages whose ids are unique, at least one."""
    seen: set[str] = set()
    for where, passage in passages:
        if passage.id in seen:
            raise CorpusError(f"{where}: the id {passage.id!r} is used twice; ids name passages and must be unique")
        seen.add(passage.id)
        yield passage
    if not seen:
        raise CorpusError(f"{corpus} holds no passage; expected one JSON object on every line")
