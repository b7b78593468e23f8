"""The worker process: reads one request a line, answers one line, under limits of memory and processor time."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import BinaryIO

READY = b"ready\n"
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


def answer(line: bytes) -> bytes:
    """Return the reply to one request, a JSON array of gold and answer."""
    from .decide import FAILURES, decide
    from .thorough import ThoroughJudge

    try:
        gold, given = json.loads(line)
        verdict = decide(gold, given, ThoroughJudge())
    except FAILURES:
        return FAILED
    return UNDECIDED if verdict is None else YES if verdict else NO


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the stream ends."""
    replies.write(READY)
    replies.flush()
    for line in requests:
        limit_processor_time(10)
        replies.write(answer(line))
        replies.flush()


def main(max_bytes: int) -> None:
    """Run the worker on standard input and output; whatever else prints goes nowhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(max_bytes)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from .thorough import warm_up

    warm_up()  # before the first request, so that no request pays for it

    serve(sys.stdin.buffer, replies)
