"""An index on disk: a folder with a manifest, written beside its place and renamed, so that it is whole or not there.

The manifest says what the folder is, from which corpus and with which settings it was built, and how long each of
its files is; a folder that was copied or moved elsewhere opens there. Engines that return passages from memory-mapped
files share `PassageStore`::

    with new_index(path) as folder:
        with PassageWriter(folder) as writer:
            for passage in iter_passages(corpus):
                writer.add(passage)
        ...                                     # the engine's own files
        write_manifest(folder, Manifest(kind="bm25", version=1, num_passages=writer.num_passages,
                                        corpus_digest=writer.digest, settings={"k1": 0.9}))
    manifest = open_manifest(path, kind="bm25", version=1)
    passages = PassageStore.open(path)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import mmap
import os
import shutil
import tokenize
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np

from retrieval.corpus import row_of
from srpo_envs.errors import SearchIndexError
from srpo_envs.search import Passage

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
_LOCK_FILE = ".lock"
_ROWS_FILE = "passages.jsonl"
_OFFSETS_FILE = "passages.offsets.npy"

REBUILD = "build it again with `srpo retrieval build`"
"""The remedy for every index that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an index is.

    Example:
        ``Manifest(kind="bm25", version=1, num_passages=6119, corpus_digest="3f...", settings={"k1": 0.9, "b": 0.4})``
    """

    kind: str
    """The engine."""
    version: int
    """Of the engine's files; an engine opens its own version only."""
    num_passages: int
    """Size of the corpus."""
    corpus_digest: str
    """`retrieval.corpus.corpus_digest` of the corpus."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Whatever changes what a search returns; JSON values."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ where kind, version, corpus or a setting does."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def new_index(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Build an index in a hidden folder beside its place, and move it there when the body has written its manifest.

    An index that is already at `path` stays usable until then and is replaced. When the body fails, nothing is left;
    when the process is killed, the next build of the same index clears what is.

    Args:
        path: Where the index will be.

    Yields:
        The empty folder to write into.

    Raises:
        SearchIndexError: something that is not an index is at `path`, its folder cannot be made, or another build is
            writing it.
    """
    target = Path(path)
    if os.path.exists(target) and not (target / MANIFEST_FILE).is_file() and not _is_empty_folder(target):
        raise SearchIndexError(f"{str(target)!r} exists and is not an index; choose another place or remove it")
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SearchIndexError(f"no index can be written at {str(target)!r} ({error}); choose another place") from error
    with _lock(partial, target):
        _clear(partial)
        try:
            yield partial
            _check_files(partial, _read_manifest(partial))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        (partial / _LOCK_FILE).unlink()
        _move(partial, target)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Finish an index: write its manifest with the length of every file that is in the folder now."""
    files = {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in (_LOCK_FILE, MANIFEST_FILE)
    }
    content = {**dataclasses.asdict(manifest), "fingerprint": manifest.fingerprint, "files": files}
    (folder / MANIFEST_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def open_manifest(path: str | os.PathLike[str], kind: str, version: int) -> Manifest:
    """Return the manifest of an index that is whole and of the expected kind.

    Raises:
        SearchIndexError: no index there, one of another kind or version, or a file is missing or has another length
            than it was written with; says what to do.
    """
    folder = Path(path)
    content = _read_manifest(folder)
    names = [item.name for item in dataclasses.fields(Manifest)]
    try:
        manifest = Manifest(**{name: content[name] for name in names})
        is_intact = content["fingerprint"] == manifest.fingerprint
    except (KeyError, TypeError) as error:
        raise SearchIndexError(f"{str(folder / MANIFEST_FILE)!r} is damaged ({error!r}); {REBUILD}") from error
    if manifest.kind != kind:
        raise SearchIndexError(
            f"{str(folder)!r} is an index of kind {manifest.kind!r}, expected {kind!r}; "
            f"open it as {manifest.kind}:{folder}, or build another for {kind}"
        )
    if manifest.version != version:
        raise SearchIndexError(
            f"{str(folder)!r}: {kind} index of version {manifest.version}, this software reads {version}; {REBUILD}"
        )
    if not is_intact:
        raise SearchIndexError(f"{str(folder / MANIFEST_FILE)!r} was changed after the build; {REBUILD}")
    _check_files(folder, content)
    return manifest


class PassageWriter:
    """Writes the passages of an index, in the order of their numbers.

    Args:
        folder: From `new_index`.
    """

    def __init__(self, folder: Path) -> None:
        self._offsets_path = folder / _OFFSETS_FILE
        self._offsets = array("q", [0])
        self._digest = hashlib.sha256()
        self._stream = (folder / _ROWS_FILE).open("wb")

    def __enter__(self) -> PassageWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        if error is None:
            np.save(self._offsets_path, np.frombuffer(self._offsets, dtype=np.int64))

    def add(self, passage: Passage) -> None:
        """Append one passage; the first has number 0."""
        row = row_of(passage)
        self._stream.write(row)
        self._digest.update(row)
        self._offsets.append(self._offsets[-1] + len(row))

    @property
    def num_passages(self) -> int:
        """Passages written so far."""
        return len(self._offsets) - 1

    @property
    def digest(self) -> str:
        """`retrieval.corpus.corpus_digest` of the passages so far."""
        return self._digest.hexdigest()


class PassageStore(Sequence[Passage]):
    """Passages by number, read from memory-mapped files; safe for any number of threads.

    Args:
        rows: Rows of a corpus file, one after the other.
        offsets: [num_passages + 1] int64, where each row begins in `rows`, and where the last one ends.
    """

    def __init__(self, rows: mmap.mmap, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._rows = rows
        self._offsets = offsets

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PassageStore:
        """Open the passages of an index folder.

        Raises:
            SearchIndexError: they are missing or damaged.
        """
        folder = Path(path)
        offsets = open_array(folder / _OFFSETS_FILE)
        try:
            with (folder / _ROWS_FILE).open("rb") as stream:
                rows = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SearchIndexError(f"{str(folder / _ROWS_FILE)!r} cannot be read ({error}); {REBUILD}") from error
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 2 or offsets[-1] != len(rows):
            raise SearchIndexError(f"{str(folder)!r}: rows and offsets of the passages do not fit; {REBUILD}")
        return cls(rows, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> list[Passage]: ...
    def __getitem__(self, number: int | slice) -> Passage | list[Passage]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"passage {number} of {len(self)}")
        return self.read(number % len(self))

    def read(self, number: int, score: float = 0.0) -> Passage:
        """Return a passage with the score of a search."""
        begin, end = self._offsets[number], self._offsets[number + 1]
        try:
            row = json.loads(self._rows[begin:end])
            return Passage(id=row["id"], title=row["title"], text=row["text"], score=score)
        except (ValueError, KeyError, TypeError) as error:
            raise SearchIndexError(f"passage {number} of the index is damaged ({error!r}); {REBUILD}") from error

    def close(self) -> None:
        """Unmap the rows; no passage can be read afterwards."""
        self._rows.close()


def open_array(file: Path) -> np.ndarray[Any, Any]:
    """Return an array of an index, memory-mapped and read-only.

    Raises:
        SearchIndexError: it is missing or damaged.
    """
    try:
        mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, tokenize.TokenError) as error:
        raise SearchIndexError(f"{str(file)!r} cannot be read ({error}); {REBUILD}") from error
    return np.asarray(mapped)  # a plain view: slicing a `numpy.memmap` costs ten times as much


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST_FILE
    try:
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SearchIndexError(f"no index at {str(folder)!r} (it has no {MANIFEST_FILE}); {REBUILD}") from error
    except OSError as error:
        raise SearchIndexError(f"{str(file)!r} cannot be read ({error})") from error
    except ValueError as error:
        raise SearchIndexError(f"{str(file)!r} is damaged ({error}); {REBUILD}") from error
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise SearchIndexError(f"{str(file)!r} is damaged (expected an object with 'files'); {REBUILD}")
    return content


def _check_files(folder: Path, content: Mapping[str, Any]) -> None:
    for name, num_bytes in content["files"].items():
        file = folder / name
        found = f"{file.stat().st_size} bytes" if file.is_file() else "no file"
        if found != f"{num_bytes} bytes":
            raise SearchIndexError(
                f"{str(file)!r}: expected {num_bytes} bytes, got {found}; copy it again or {REBUILD}"
            )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _clear(folder: Path) -> None:
    """Remove what a killed build left."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK_FILE:
            entry.unlink()


def _move(partial: Path, target: Path) -> None:
    """Rename; a folder cannot be renamed over one with content, so an older index steps aside first."""
    replaced = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


@contextlib.contextmanager
def _lock(partial: Path, target: Path) -> Iterator[None]:
    """Hold the lock that ends with this process, however it ends."""
    with (partial / _LOCK_FILE).open("a") as lock:
        try:
            import fcntl
        except ImportError:  # Windows
            logger.info("%s: this system has no file locks; do not build one index twice at a time", target)
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))  # the other may just have finished
        except OSError:
            is_held = False
        if not is_held:
            raise SearchIndexError(f"another build is writing {str(target)!r}; wait for it, or choose another place")
        yield
