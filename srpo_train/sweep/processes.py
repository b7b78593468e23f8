"""One run in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO

from srpo_train.sweep.cells import Run

LOG_FILE = "train.log"
"""What the process of a run wrote, in its run directory; every start appends."""

_TAIL_BYTES = 4096


def train_command(run: Run) -> list[str]:
    """Return the command that trains a run to its end, from wherever it is."""
    return [sys.executable, "-m", "srpo_train.sweep.tied", "train", str(run.run_dir), "--resume"]


class RunProcess:
    """A started run: a process group of its own, which ends when this process ends.

    Args:
        run: What is trained.
        command: Program and arguments; it reads its standard input, see `srpo_train.sweep.tied`.
        num_threads: Threads it may compute with.
    """

    def __init__(self, run: Run, command: Sequence[str], num_threads: int) -> None:
        self.run = run
        self._log = run.run_dir / LOG_FILE
        with self._log.open("ab") as log:
            self._log_begin = log.tell()
            self._process = _start(command, log, num_threads)

    @property
    def pid(self) -> int:
        """Process id, and that of its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs; afterwards nothing of it is left."""
        status = self._process.poll()
        if status is not None:
            self.kill()
        return status

    def kill(self) -> None:
        """End the process and what it started, at once; safe to call more than once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()

    def tail(self, num_lines: int = 12) -> str:
        """Return the last lines that this start of the run wrote."""
        with self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_begin, size - _TAIL_BYTES))
            lines = log.read().decode("utf-8", errors="replace").rstrip().splitlines()
        return "\n".join(lines[-num_lines:])


def describe_status(status: int) -> str:
    """Say how a process ended.

    Example:
        >>> describe_status(-9)
        'killed by SIGKILL'
    """
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


def _start(command: Sequence[str], log: BinaryIO, num_threads: int) -> subprocess.Popen[bytes]:
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in the terminal reaches the sweep alone
        env={**os.environ, **threads},
    )
