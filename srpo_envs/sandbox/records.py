"""What goes into the sandbox and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "error", "timeout", "memory", "output", "killed", "failed"]
"""How a run ended.

`ok`: exit code 0, or a value was returned. `error`: another exit code, or an error was raised. `timeout`: over its
processor or wall-clock time. `memory`: out of memory. `output`: wrote more than it may. `killed`: ended by a signal, or
silenced itself. `failed`: the test code that called it was not satisfied.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use.

    Example:
        >>> Limits(cpu_s=1.0).wall_s
        10.0
    """

    cpu_s: float = 5.0
    """Processor seconds of a script, rounded up to whole ones. Calls are held by `wall_s` alone."""
    wall_s: float = 10.0
    """Seconds on the clock, of a script or of one call; starting the box does not count."""
    memory_bytes: int = 1 << 30
    """Address space. A program is one process, so this is all the memory it gets, next to its scratch files."""
    num_threads: int = 32
    """Threads at a time, the main one included; further processes cannot be started."""
    file_bytes: int = 16 << 20
    """Size of the scratch folder, and of any one file in it."""
    output_bytes: int = 4 << 20
    """Bytes of standard output and standard error together, and of one returned value."""


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program and what it is started with.

    Example:
        >>> Program("print(int(input()) + 1)", stdin="41")
        Program(source='print(int(input()) + 1)', stdin='41', args=())
    """

    source: str
    """Text of the program; nothing is assumed about it."""
    stdin: str = ""
    """All of its standard input."""
    args: tuple[str, ...] = ()
    """Command-line arguments: `sys.argv[1:]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a program did, as data; what it printed, returned and exited with is in its own hands."""

    status: Status
    """How it ended."""
    exit_code: int | None
    """Exit code of a script, negative for a signal; None when it was stopped from outside, and for calls."""
    stdout: str
    """What it printed; bytes that are no UTF-8 are replaced."""
    stderr: str
    """What it printed as errors, and the traceback of a call."""
    cpu_s: float
    """Processor seconds of a script that ended by itself; 0.0 otherwise."""
    wall_s: float
    """Seconds on the clock, seen from outside the box."""
    value: Any = None
    """What a call returned, encoded as `srpo_envs.sandbox.keeper.plain` writes it; never decoded outside a box."""
