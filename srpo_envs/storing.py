"""Writing to a disk that may be full: the error names the file and says how to go on, and nothing half-written stays.

Libraries that write for us put the system's words into errors of their own, so these are read as well as error numbers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from srpo_envs.errors import StorageFullError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})
_NO_ROOM_TEXTS = tuple(os.strerror(number) for number in sorted(_NO_ROOM))


@contextlib.contextmanager
def storing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of a body that writes a file or a folder when it found no room for it.

    Args:
        path: What is being written, for the message.

    Raises:
        StorageFullError: the disk, the quota or the limit of a file's size is used up. Other errors pass unchanged.
    """
    try:
        yield
    except StorageFullError:
        raise
    except Exception as error:
        if (trouble := _no_room(error)) is None:
            raise
        raise StorageFullError(
            f"{os.fspath(path)} could not be written: {trouble}; free space there, then go on with --resume"
        ) from error


def append_whole(file: FileIO, data: bytes, *, is_forced: bool = True) -> None:
    """Append to an unbuffered file; when that fails, what was written of it is taken off again.

    Args:
        file: Opened for appending.
        data: All of it.
        is_forced: Whether it has to be on the disk itself when this returns, so that it survives a power cut.

    Raises:
        OSError: it could not be written.
    """
    end = os.fstat(file.fileno()).st_size
    try:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        if is_forced:
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), end)
        raise


def replace_whole(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file that is there whole or not at all, beside it and then renamed; what was there stays until then.

    Raises:
        StorageFullError: there is no room for it.
    """
    partial = path.with_name(path.name + ".partial")
    with storing(path):
        try:
            with partial.open("wb") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise


def _no_room(error: BaseException) -> str | None:
    """Return the system's words for what is used up, None when this error is of another kind."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno in _NO_ROOM else None
    text = str(error)
    return next((words for words in _NO_ROOM_TEXTS if words in text), None)
