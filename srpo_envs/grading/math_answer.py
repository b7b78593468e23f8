r"""Equivalence of mathematical answers: one question, a cheap exact path, and a pool of limited workers behind it.

Most checks are decided in the calling process by reading both texts into trees and comparing them with exact rational
arithmetic. Only what that leaves open (trigonometric identities, nested radicals, inequalities) goes to a worker
process with hard limits. Model text is never executed and never reaches sympy as text.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from srpo_envs.errors import UnreadableGoldError
from srpo_envs.grading.equivalence.compare import CheapJudge
from srpo_envs.grading.equivalence.decide import FAILURES, decide
from srpo_envs.grading.equivalence.nodes import Unreadable
from srpo_envs.grading.equivalence.reader import read
from srpo_envs.grading.pool import WorkerPool

logger = logging.getLogger(__name__)

LIMIT_S = 1.4
"""Wall-clock limit of one check in a worker."""

TOTAL_S = 1.9
"""Wall-clock limit of one check that has to start its worker first."""

WORKER_BYTES = 1 << 30
"""Address space of a worker."""

_BOOTSTRAP = "import sys; sys.path.append(sys.argv[1]); from equivalence.worker import main; main(int(sys.argv[2]))"
_YES, _FAILED = b"1\n", b"!\n"


@dataclass(frozen=True, slots=True)
class GraderStats:
    """Counters of a grader since it was made."""

    checks: int
    """Questions asked."""
    cheap: int
    """Questions answered without a worker."""
    pooled: int
    """Questions a worker was asked."""
    timeouts: int
    """Questions answered "not equal" because the limit ran out."""
    crashes: int
    """Questions answered "not equal" because they ended two workers, or one ran out of memory."""
    lost_workers: int
    """Workers that ended at work; what they had was graded again by others."""
    starts: int
    """Workers started."""


class MathGrader:
    """Decides whether answers equal golds. The module functions use one shared instance.

    Args:
        num_workers: most worker processes at a time.
        limit_s: wall-clock limit of one check in a worker.
    """

    def __init__(self, *, num_workers: int | None = None, limit_s: float = LIMIT_S) -> None:
        self._pool = WorkerPool(
            # -P keeps the working directory out of the worker's import path.
            (sys.executable, "-P", "-c", _BOOTSTRAP, str(Path(__file__).parent), str(WORKER_BYTES)),
            num_workers=num_workers or min(4, os.cpu_count() or 1),
            limit_s=limit_s,
            total_s=max(TOTAL_S, limit_s),
        )
        self._judge = CheapJudge()
        self._lock = threading.Lock()
        self._num_checks = self._num_cheap = self._num_failed = 0

    def is_equivalent(self, gold: str, answer: str) -> bool:
        r"""Whether the content of a model's box is the same answer as the gold.

        Args:
            gold: the gold text, such as `\frac{3}{4}`, without an outer `\boxed`.
            answer: the content of the model's box, whatever it is.

        Returns:
            True only if equality was established. A check that hangs, blows up or cannot be decided is False.

        Raises:
            UnreadableGoldError: the gold itself cannot be read; `check_gold` finds this when the data are loaded.
            GraderUnavailableError: no worker can be started.
        """
        check_gold(gold)
        verdict = gold.strip() == answer.strip() or self._cheap_verdict(gold, answer)
        self._count(is_cheap=verdict is not None)
        return self._ask_worker(gold, answer) if verdict is None else verdict

    def _cheap_verdict(self, gold: str, answer: str) -> bool | None:
        try:
            return decide(gold, answer, self._judge)
        except FAILURES:
            logger.debug("cheap grading failed on %r", answer[:80], exc_info=True)
            return None

    def _count(self, *, is_cheap: bool) -> None:
        with self._lock:
            self._num_checks += 1
            self._num_cheap += is_cheap

    def _ask_worker(self, gold: str, answer: str) -> bool:
        reply = self._pool.ask(json.dumps([gold, answer]).encode() + b"\n")
        if reply == _FAILED:
            with self._lock:
                self._num_failed += 1
        return reply == _YES

    def stats(self) -> GraderStats:
        """Return the counters."""
        pool = self._pool.stats
        return GraderStats(
            checks=self._num_checks,
            cheap=self._num_cheap,
            pooled=pool.requests,
            timeouts=pool.timeouts,
            crashes=pool.crashes + self._num_failed,
            lost_workers=pool.lost_workers,
            starts=pool.starts,
        )

    def close(self) -> None:
        """End the workers; closing twice does nothing, and a later check starts them again."""
        self._pool.close()


def check_gold(gold: str) -> None:
    """Make sure that a gold can be read. Loaders call this for every row.

    Raises:
        UnreadableGoldError: the gold is empty or not well formed, so no answer could ever be graded against it.
    """
    try:
        read(gold)
    except Unreadable as error:
        raise UnreadableGoldError(
            f"gold answer {gold[:80]!r}: expected a readable answer, got one that is not ({error}); fix or drop the row"
        ) from error


_shared: MathGrader | None = None
_shared_lock = threading.Lock()


def shared_grader() -> MathGrader:
    """Return the grader behind the module functions."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = MathGrader()
        return _shared


def is_equivalent(gold: str, answer: str) -> bool:
    """See `MathGrader.is_equivalent`."""
    return shared_grader().is_equivalent(gold, answer)


def stats() -> GraderStats:
    """Return the counters of the shared grader."""
    return shared_grader().stats()


def close() -> None:
    """End the workers of the shared grader."""
    shared_grader().close()
