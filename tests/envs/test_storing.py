"""What is said of a full disk, and what is left behind by a file that found no room."""

from __future__ import annotations

import errno
import io
import os
import pickle
from pathlib import Path

import pytest

from srpo_envs.errors import StorageFullError
from srpo_envs.storing import append_whole, replace_whole, storing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_told_with_file_and_remedy(number: int) -> None:
    with pytest.raises(StorageFullError) as told, storing("runs/a/metrics.jsonl"):
        raise OSError(number, "some words")
    assert str(told.value) == (
        f"runs/a/metrics.jsonl could not be written: {os.strerror(number)}; free space there, then go on with --resume"
    )
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


def test_libraries_that_say_it_in_their_own_errors_are_understood() -> None:
    with pytest.raises(StorageFullError, match="No space left on device"), storing("x"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "denied"), OSError("no number"), RuntimeError("a bug")])
def test_other_errors_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as passed, storing("x"):
        raise error
    assert passed.value is error


def test_the_innermost_file_is_named() -> None:
    with pytest.raises(StorageFullError, match=r"^inner could"), storing("outer"), storing("inner"):
        raise OSError(errno.ENOSPC, "full")


class FullAfter(io.FileIO):
    """A file that takes so many bytes, as a disk does that is nearly full."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path, "ab")
        self._room = room

    def write(self, data: bytes) -> int:  # type: ignore[override]
        taken = bytes(data)[: self._room]
        if not taken:
            raise OSError(errno.ENOSPC, "full")
        self._room -= len(taken)
        return super().write(taken)


def test_a_line_that_found_no_room_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with FullAfter(path, room=10) as file:
        append_whole(file, b"whole\n")
        with pytest.raises(OSError, match="full"):
            append_whole(file, b"not whole\n")
    assert path.read_bytes() == b"whole\n"


def test_a_line_that_is_taken_in_pieces_arrives_whole(tmp_path: Path) -> None:
    class Slow(io.FileIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            return super().write(bytes(data)[:2])

    with Slow(tmp_path / "log", "ab") as file:
        append_whole(file, b"a long line\n", is_forced=False)
    assert (tmp_path / "log").read_bytes() == b"a long line\n"


def test_a_file_that_cannot_be_replaced_stays_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    replace_whole(path, [b"old\n"])

    def lines() -> object:
        yield b"new\n"
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(StorageFullError, match=r"recipe\.toml could not be written"):
        replace_whole(path, lines())  # type: ignore[arg-type]
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]
