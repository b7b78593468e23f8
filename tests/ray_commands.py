"""Commands of the project in processes of their own, on clusters that they start and that must be gone afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


class RayCommands:
    """Starts commands whose processes, those of Ray and its workers included, are told by a mark.

    Args:
        folder: For Ray's files; its sockets have short paths.
    """

    def __init__(self, folder: str) -> None:
        self._mark = f"srpo-test-{uuid.uuid4().hex}"
        # Ray's own processes yield to all others unless told not to, and other tests run beside these.
        settings = {"RAY_TMPDIR": folder, "RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
        settings |= {"OMP_NUM_THREADS": "1", "SRPO_TEST_MARK": self._mark}
        self._environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}

    def start(self, *command: object, output: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command; what it says goes into a file."""
        with output.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment | environment,
            )

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=800, env=self._environment
        )

    @property
    def left(self) -> list[str]:
        """Command lines of all processes that are still there."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended, or is another user's
        return found


@contextlib.contextmanager
def ray_commands() -> Iterator[RayCommands]:
    """Make commands, and see that they leave no process behind."""
    with tempfile.TemporaryDirectory(prefix="srpo-", dir="/tmp") as folder:
        commands = RayCommands(folder)
        yield commands
        assert commands.left == []
