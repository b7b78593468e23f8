"""The worker process: reads one request a line, answers one line, under limits of memory and processor time."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import sys
from typing import BinaryIO

from .decide import FAILURES, decide
from .thorough import Solver, ThoroughJudge, load_solver

READY = b"ready\n"
LOADING, LOADED = b"loading\n", b"loaded\n"
"""Lines around the import of sympy, which the first condition needs and which does not count against its limit."""
YES, NO, UNDECIDED, FAILED = b"1\n", b"0\n", b"?\n", b"!\n"


def limit_memory(num_bytes: int) -> None:
    """Cap the address space of this process, within what it was given."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def limit_processor_time(extra_s: int) -> None:
    """Let the kernel end this process when it computes longer than that from now on.

    The parent kills a worker that overruns; this limit serves when the parent itself is gone.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(usage.ru_utime + usage.ru_stime) + extra_s
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def answer(line: bytes, judge: ThoroughJudge) -> bytes:
    """Return the reply to one request, a JSON array of gold and answer."""
    try:
        gold, given = json.loads(line)
        verdict = decide(gold, given, judge)
    except FAILURES:
        return FAILED
    return UNDECIDED if verdict is None else YES if verdict else NO


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the stream ends."""

    def say(line: bytes) -> None:
        replies.write(line)
        replies.flush()

    def load() -> Solver:
        say(LOADING)
        solver = load_solver()
        say(LOADED)
        return solver

    judge = ThoroughJudge(load)
    say(READY)
    for line in requests:
        limit_processor_time(10)
        say(answer(line, judge))


def main(max_bytes: int) -> None:
    """Run the worker on standard input and output; whatever else prints goes nowhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(max_bytes)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if importlib.util.find_spec("sympy") is None:
        raise ModuleNotFoundError("sympy")
    serve(sys.stdin.buffer, replies)
