"""Places in growing files, that tell whether the file is still the one that was read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_CHECKED = 1024


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a file was read, and what stood there."""

    inode: int
    """The file's number, which another file of its name mostly does not have."""
    offset: int
    """Bytes that were read."""
    digest: str
    """Of the last of them; other bytes mean another file."""

    @classmethod
    def at(cls, path: Path, offset: int) -> Self:
        """Return the mark of a file that was read up to a byte."""
        return cls(path.stat().st_ino, offset, _digest(path, offset))

    def holds(self, path: Path) -> bool:
        """Whether the file may have grown since, but holds what was read."""
        stat = path.stat()
        return stat.st_ino == self.inode and stat.st_size >= self.offset and _digest(path, self.offset) == self.digest


def _digest(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        file.seek(max(0, offset - _CHECKED))
        return hashlib.blake2b(file.read(min(offset, _CHECKED)), digest_size=8).hexdigest()
