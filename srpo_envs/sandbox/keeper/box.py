"""One box: a fresh set of namespaces with one first process, fed with requests, watched from outside."""

from __future__ import annotations

import json
import marshal
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

START_LIMIT_S = 30.0
"""How long a box may take to start before the sandbox counts as broken."""

_END_LIMIT_S = 10.0
_CHUNK = 1 << 16
_MAX_DEPTH = 200
"""Deepest nesting of a message: what later has to pack, send and read it must never run out of stack over it."""

Message = dict[str, Any]


class BoxError(Exception):
    """The box itself failed; what the program would have done is unknown."""


class Overrun(Exception):
    """The program went over its wall clock or its output; carries the status."""


@dataclass(slots=True)
class Output:
    """What a program has written so far, and how much it may write."""

    limit_bytes: int
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    reply: bytearray = field(default_factory=bytearray)

    def is_over(self) -> bool:
        """Whether the program wrote more than it may, on any way out."""
        return len(self.stdout) + len(self.stderr) > self.limit_bytes or len(self.reply) > self.limit_bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """How a box is started."""

    command: list[str]
    """The whole command line."""
    environment: dict[str, str]
    """Environment of the command; bubblewrap clears it again."""
    filter_fd: int | None
    """Descriptor of the filter that bubblewrap reads; None without bubblewrap."""
    has_scratch: bool
    """Whether the host has to lend a folder, since the box has no scratch of its own."""


class Box:
    """A running box.

    Args:
        launch: how to start it.
        setup: first message to its first process.

    Raises:
        BoxError: it did not start.
    """

    def __init__(self, launch: Launch, setup: Message) -> None:
        self._folder = tempfile.mkdtemp(prefix="box-") if launch.has_scratch else None
        try:
            self._process, self._requests, self._descriptors = _start(launch, self._folder)
        except OSError as error:
            self._remove_folder()
            raise BoxError(f"{launch.command[0]} cannot be started: {error}") from error
        self._poller = select.poll()
        for descriptor in self._descriptors.values():
            os.set_blocking(descriptor, False)
            self._poller.register(descriptor, select.POLLIN)
        self.is_alive = True
        self._handshake(setup)

    def _handshake(self, setup: Message) -> None:
        output = Output(limit_bytes=1 << 20)
        try:
            message = self.ask(setup, output, START_LIMIT_S)
        except Overrun as overrun:
            raise BoxError(f"a box did not start within {START_LIMIT_S:g} s ({overrun})") from overrun
        if message != {"ready": True}:
            self.kill()
            said = output.stderr.decode(errors="replace").strip() or f"exit code {self._process.returncode}"
            raise BoxError(f"a box did not start: {said}")

    def ask(self, request: Message, output: Output, limit_s: float) -> Message | None:
        """Send a request and return the next message of the box, None when it ended or wrote no message.

        Raises:
            Overrun: the time is over or the output too long; the box is gone then.
        """
        deadline = time.monotonic() + limit_s
        output.reply.clear()
        data = marshal.dumps(request)
        self._send(len(data).to_bytes(4, "little") + data, deadline)
        while b"\n" not in output.reply:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._overrun("timeout")
            for descriptor, _ in self._poller.poll(left_s * 1000):
                if self.is_alive:
                    self._read(descriptor, output)
            if output.is_over():
                self._overrun("output")
            if not self.is_alive:
                return None
        self._drain(output)
        if output.is_over():
            self._overrun("output")
        return _parse(bytes(output.reply).partition(b"\n")[0])

    def _send(self, data: bytes, deadline: float) -> None:
        """Write a request; a box that does not read it runs into its deadline."""
        view = memoryview(data)
        poller = select.poll()
        poller.register(self._requests, select.POLLOUT)
        while view:
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._overrun("timeout")
            try:
                view = view[os.write(self._requests, view[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def _read(self, descriptor: int, output: Output) -> None:
        """Take what one stream holds; the end of the replies is the end of the box."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self._poller.unregister(descriptor)
            if descriptor == self._descriptors["reply"]:
                self._drain(output)
                self.kill()
            return
        for name, known in self._descriptors.items():
            if known == descriptor:
                getattr(output, name).extend(chunk)

    def _drain(self, output: Output) -> None:
        """Take what is left in the streams of output."""
        for name in ("stdout", "stderr"):
            buffer = getattr(output, name)
            while not output.is_over():
                try:
                    chunk = os.read(self._descriptors[name], _CHUNK)
                except BlockingIOError:
                    break
                if not chunk:
                    break
                buffer.extend(chunk)

    def _overrun(self, status: str) -> None:
        self.kill()
        raise Overrun(status)

    def kill(self) -> None:
        """End every process of the box and wait until all are gone; killing twice does nothing.

        Raises:
            BoxError: something in the box outlived its namespaces.
        """
        if not self.is_alive:
            return
        self.is_alive = False
        _signal_group(self._process)
        self._process.wait()
        has_ended = _wait_for_end(self._descriptors["reply"])
        for descriptor in (self._requests, *self._descriptors.values()):
            os.close(descriptor)
        self._remove_folder()
        if not has_ended:
            raise BoxError("processes of a box are alive after its end")

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _start(launch: Launch, folder: str | None) -> tuple[subprocess.Popen[bytes], int, dict[str, int]]:
    """Start the command with two pipes named on its command line; returns the process and this side's ends."""
    request_out, request_in = os.pipe()
    reply_out, reply_in = os.pipe()
    try:
        process = subprocess.Popen(
            [*launch.command, str(request_out), str(reply_in)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=launch.environment,
            cwd=folder,
            pass_fds=[request_out, reply_in, *([] if launch.filter_fd is None else [launch.filter_fd])],
            start_new_session=True,
            bufsize=0,
        )
    except OSError:
        for descriptor in (request_in, reply_out):
            os.close(descriptor)
        raise
    finally:
        os.close(request_out)
        os.close(reply_in)
    assert process.stdout is not None and process.stderr is not None
    os.set_blocking(request_in, False)
    outputs = {"stdout": process.stdout.fileno(), "stderr": process.stderr.fileno()}
    duplicates = {name: os.dup(descriptor) for name, descriptor in outputs.items()}
    process.stdout.close()
    process.stderr.close()
    return process, request_in, {"reply": reply_out, **duplicates}


def _signal_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait_for_end(descriptor: int) -> bool:
    """Whether the stream ended in time: its other end is held by the box's processes and by nothing else."""
    os.set_blocking(descriptor, True)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + _END_LIMIT_S
    while (left_s := deadline - time.monotonic()) > 0 and poller.poll(left_s * 1000):
        if not os.read(descriptor, _CHUNK):
            return True
    return False


def _parse(line: bytes) -> Message | None:
    """Return a message of the box, None for anything that is none: the program may have written it."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and not _is_deep(message) else None


def _is_deep(message: Message) -> bool:
    level: list[Any] = [message]
    for _ in range(_MAX_DEPTH):
        held = (item for box in level for item in (box.values() if isinstance(box, dict) else box))
        level = [item for item in held if isinstance(item, dict | list)]
    return bool(level)
