"""A pool of worker processes with hard limits: a request that hangs, blows up or dies never costs more than its limit.

A worker that ends in the middle of a request may have been killed by somebody else (the kernel, for want of memory, or
a person), so another one gets the request again. A request that ends that one too is what ends workers.

Workers are fresh interpreters started by `subprocess`, never forks of the calling process, so threads of torch or of
anything else are no danger. Waiting happens on file descriptors, not on signals, so it works from any thread. The limit
starts when a worker has the request: time in the queue does not count against the answer. A request that has to start
its worker first gets what the start left of a total, so that it too ends in time.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import select
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from srpo_envs.errors import GraderUnavailableError

logger = logging.getLogger(__name__)

START_LIMIT_S = 60.0
READY, LOADING = b"ready\n", b"loading\n"
_TRIES = 2


class WorkerTimeout(Exception):
    """The worker did not reply in time."""


class WorkerDeath(Exception):
    """The worker ended instead of replying."""


@dataclass(slots=True)
class PoolStats:
    """What a pool has done since it was made."""

    requests: int = 0
    """Lines it was asked."""
    timeouts: int = 0
    """Requests that ran into the limit."""
    crashes: int = 0
    """Requests that ended every worker they were given."""
    lost_workers: int = 0
    """Workers that ended at work."""
    starts: int = 0
    """Workers started."""


class Worker:
    """One worker process and its two pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            raise GraderUnavailableError(f"grading worker {command[0]!r} cannot be started: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._replies = self.process.stdin, self.process.stdout
        self._received = b""

    def wait_until_ready(self) -> None:
        """Wait for the first line of a new worker.

        Raises:
            GraderUnavailableError: the worker ended or stayed silent.
        """
        try:
            line = self._read_line(START_LIMIT_S)
        except (WorkerTimeout, WorkerDeath) as error:
            self.kill()
            raise GraderUnavailableError(
                "a grading worker did not start: are sympy and mpmath installed? Run pip install 'srpo[math]'"
            ) from error
        if line != READY:
            self.kill()
            raise GraderUnavailableError(f"a grading worker started with {line!r} instead of {READY!r}")

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def ask(self, request: bytes, limit_s: float) -> bytes:
        """Send one line and return the line that comes back.

        A worker may say that it is `LOADING`, then that it is done: the limit stops meanwhile, and half is left after.

        Raises:
            WorkerTimeout: no reply within the limit.
            WorkerDeath: the process ended.
        """
        try:
            self._requests.write(request)
        except (BrokenPipeError, ValueError) as error:
            raise WorkerDeath from error
        line = self._read_line(limit_s)
        if line == LOADING:
            self._read_line(START_LIMIT_S)
            line = self._read_line(limit_s / 2)
        return line

    def _read_line(self, limit_s: float) -> bytes:
        deadline = time.monotonic() + limit_s
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                raise WorkerTimeout
            chunk = os.read(self._replies.fileno(), 4096)
            if not chunk:
                raise WorkerDeath
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line + b"\n"

    def kill(self) -> None:
        """End the process at once and release its pipes."""
        self.process.kill()
        self.process.wait()
        self.release()

    def release(self) -> None:
        """Close this side's pipes; an idle worker ends by itself when its input ends."""
        for stream in (self._requests, self._replies):
            stream.close()


class WorkerPool:
    """Up to `num_workers` workers, started when first needed and replaced when lost.

    Args:
        command: command line of a worker; it must print `ready` and then answer each input line with one line.
        num_workers: most workers at a time.
        limit_s: wall-clock limit of one request, counted from when the worker holds it.
        total_s: wall-clock limit of one request together with the start of the worker it needs, if it needs one; a slow
            start still leaves the request half of `limit_s`.
    """

    def __init__(self, command: Sequence[str], *, num_workers: int, limit_s: float, total_s: float = math.inf) -> None:
        self.limit_s = limit_s
        self.total_s = total_s
        self.stats = PoolStats()
        self._command = tuple(command)
        self._num_workers = num_workers
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._slots = threading.BoundedSemaphore(self._num_workers)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()

    def ask(self, request: bytes) -> bytes | None:
        """Return a worker's reply to one line; None when it timed out or ended two workers, or the pool was closed.

        Raises:
            GraderUnavailableError: no worker can be started.
        """
        with self._lock:
            self.stats.requests += 1
        with self._slots:
            for number in range(1, _TRIES + 1):
                try:
                    return self._ask_once(request)
                except WorkerTimeout:
                    self._count("timeouts")
                    return None
                except WorkerDeath:
                    self._count("lost_workers")
                    _count_lost()
                    logger.warning("a grading worker ended at work: try %d of %d for this item", number, _TRIES)
            self._count("crashes")
            return None

    def _ask_once(self, request: bytes) -> bytes | None:
        begun = time.monotonic()
        worker = self._take()
        left_s = max(self.total_s - (time.monotonic() - begun), self.limit_s / 2)
        try:
            reply = worker.ask(request, min(self.limit_s, left_s))
        except BaseException:
            if self._discard(worker):
                raise
            return None  # the pool was closed meanwhile, and its workers with it
        self._give_back(worker)
        return reply

    def _take(self) -> Worker:
        """Return an idle worker that still runs, or a new one."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive():
                    self._busy.add(worker)
                    return worker
                worker.release()
        worker = Worker(self._command)
        with self._lock:
            self.stats.starts += 1
            self._busy.add(worker)
        try:
            worker.wait_until_ready()
        except BaseException:
            self._discard(worker)
            raise
        return worker

    def _give_back(self, worker: Worker) -> None:
        with self._lock:
            if worker in self._busy:
                self._busy.remove(worker)
                self._idle.append(worker)

    def _discard(self, worker: Worker) -> bool:
        """End a worker; return whether it still was one of this pool's."""
        worker.kill()
        with self._lock:
            is_own = worker in self._busy
            self._busy.discard(worker)
        return is_own

    def _count(self, counter: str) -> None:
        with self._lock:
            setattr(self.stats, counter, getattr(self.stats, counter) + 1)

    def close(self) -> None:
        """End all workers. Closing twice does nothing; a later request starts new ones."""
        with self._lock:
            workers = [*self._idle, *self._busy]
            self._idle, self._busy = [], set()
        for worker in workers:
            worker.kill()

    def forget(self) -> None:
        """Drop the workers without ending them: in a forked child they belong to the parent."""
        workers = [*self._idle, *self._busy]
        self._reset()
        for worker in workers:
            worker.release()
            worker.process.returncode = 0  # not this process's child: never waited for here


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_num_lost = 0
_counting = threading.Lock()


def num_lost_workers() -> int:
    """Return how many workers of this process's pools have ended at work so far."""
    return _num_lost


def _count_lost() -> None:
    global _num_lost
    with _counting:
        _num_lost += 1


@atexit.register
def _close_pools() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_pools() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_pools)
