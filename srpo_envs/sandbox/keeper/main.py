"""The keeper's conversation with its caller: one JSON object a line, one answer each."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

from . import bubblewrap, seccomp
from .box import Box, BoxError, Launch, Message
from .seats import Report, Seat, report


class Keeper:
    """Holds the boxes of one session: the program's, and one for trusted test code where a test has some.

    Args:
        bwrap: path of bubblewrap; None starts boxes without namespaces.
        packages: host paths of packages that programs may import.
    """

    def __init__(self, bwrap: str | None, packages: list[str]) -> None:
        self._bwrap = bwrap
        self._packages = packages
        readable = [*bubblewrap.needed_paths(), str(bubblewrap.code_folder()), *packages, *([bwrap] if bwrap else [])]
        self._is_root = not bubblewrap.drop_root(readable)
        self._filter_fd: int | None = None
        if bwrap is not None:
            self._filter_fd = os.memfd_create("filter")
            os.write(self._filter_fd, seccomp.box_filter())
        self._limits: dict[str, Any] = {}
        self._program: Seat | None = None
        self._checker: Seat | None = None
        self._is_checking = False

    def answer(self, request: Message) -> Message:
        """Carry out one request; a broken box is an answer too."""
        operation = getattr(self, "do_" + request.pop("do"))
        try:
            return {"run": operation(**request)}
        except (BoxError, seccomp.UnsupportedMachine) as error:
            self.end()
            return {"broken": str(error)}

    def do_open(self, source: str, limits: dict[str, Any]) -> Report:
        """Begin with a program; its box starts with the first run."""
        self.do_close()
        if self._checker is not None and limits != self._limits:
            self._checker.close()
            self._checker = None
        self._limits = limits
        self._program = self._seat(source)
        return report("ok")

    def do_run(self, stdin: str, args: list[str]) -> Report:
        """Run the program as a script."""
        return self._opened().run_script(stdin, args)

    def do_call(self, function: str, args: Any, kwargs: Any) -> Report:
        """Call a function of the program."""
        return self._opened().call(function, args, kwargs, self._limits["wall_s"])

    def do_check(self, function: str, support: str, code: str) -> Report:
        """Run test code that calls a function of the program.

        The run is the program's last call; its status is `ok` when the test code was satisfied, whatever the call did.
        Output of the test code stays here: it may spell out what is expected.
        """
        program, checker = self._opened(), self._ready_checker(support, function)
        checked, called = checker.check(
            code, lambda call, left_s: program.call(function, call["args"], call["kwargs"], left_s)
        )
        called.pop("value", None)
        if checked["status"] == "ok":
            return called | {"status": "ok"}
        return called | {"status": "failed"} if called["status"] == "ok" else called

    def _ready_checker(self, support: str, function: str) -> Seat:
        """Return a seat whose box runs a process for this session's test code."""
        if self._checker is None:
            self._checker = self._seat("")
        if not (self._is_checking and self._checker.is_alive):
            loaded = self._checker.load_checks(support, function)
            if loaded["status"] != "ok":
                raise BoxError(f"the test code cannot be loaded: {loaded['stderr'][-500:]}")
            self._is_checking = True
        return self._checker

    def do_close(self) -> Report:
        """End the program's box, and the process of test code; a box that only trusted code has seen is kept."""
        if self._program is not None:
            self._program.close()
        if self._checker is not None and self._is_checking:
            self._checker.end_checks()
        self._program, self._is_checking = None, False
        return report("ok")

    def end(self) -> None:
        """End every box."""
        for seat in (self._program, self._checker):
            if seat is not None:
                seat.close()

    def _opened(self) -> Seat:
        if self._program is None:
            raise BoxError("no program was opened")
        return self._program

    def _seat(self, source: str) -> Seat:
        limits = self._limits
        highest = {
            "RLIMIT_AS": limits["memory_bytes"],
            "RLIMIT_FSIZE": limits["file_bytes"],
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 1,  # too small for a dump; unlike 0, it also keeps the kernel from piping one to a handler
            "RLIMIT_MEMLOCK": 0,
        }
        is_boxed = self._bwrap is not None
        if is_boxed and not self._is_root:
            highest["RLIMIT_NPROC"] = limits["num_threads"] + 1  # and the first process of the box
        setup = {
            "source": source,
            "rlimits": {name: (value, value) for name, value in highest.items()},
            "filter": seccomp.program_filter(may_signal_itself=is_boxed).hex(),
            "path": bubblewrap.import_path(self._packages, is_boxed=is_boxed),
        }
        return Seat(self._open_box, setup, limits)

    def _open_box(self, setup: Message) -> Box:
        return Box(self._launch(), setup)

    def _launch(self) -> Launch:
        if self._bwrap is None or self._filter_fd is None:
            if self._is_root:
                raise BoxError(
                    "without namespaces, a program of root's could do what it likes: run as another user, or install "
                    "Python and this package where every user can read them"
                )
            command = bubblewrap.python_command(str(bubblewrap.code_folder()))
            return Launch(command, bubblewrap.environment("."), None, has_scratch=True)
        os.lseek(self._filter_fd, 0, os.SEEK_SET)
        scratch_bytes = self._limits["file_bytes"]
        command = bubblewrap.boxed_command(
            self._bwrap, packages=self._packages, filter_fd=self._filter_fd, scratch_bytes=scratch_bytes
        )
        return Launch(command, {}, self._filter_fd, has_scratch=False)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until the requests end; the first line says how boxes are made."""
    keeper = Keeper(**json.loads(requests.readline()))
    try:
        while line := requests.readline():
            replies.write(json.dumps(keeper.answer(json.loads(line))).encode() + b"\n")
            replies.flush()
    finally:
        keeper.end()


def main() -> None:
    """Serve on the standard streams."""
    serve(sys.stdin.buffer, sys.stdout.buffer)
