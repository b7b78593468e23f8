"""Every error the project raises, named by the boundary that was crossed.

Three kinds of trouble exist. *Bad model text* is data and never appears here. *Broken surroundings* (a retriever, an
engine, a sandbox) are `SurroundingsError`: the collector may retry and otherwise drops and counts the episode.
*Misuse* (a stale event id, a missing member, an unknown key) is everything else and raises at once.

Each class keeps the standard-library parent a caller would expect, so `except ValueError` keeps working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SrpoError(Exception):
    """Base of every error raised by `srpo_envs`, `srpo_train` and `retrieval`."""


# --- environments -------------------------------------------------------------------------------------------------


class EnvMisuseError(SrpoError, RuntimeError):
    """The environment was driven out of order, for example stepped before reset or after its end."""


class StaleEventError(EnvMisuseError):
    """Outputs were sent for an event that is not the pending one."""


class MemberMismatchError(SrpoError, ValueError):
    """The outputs do not match the announced members: one is missing, unknown or given twice."""


class TokenCountError(EnvMisuseError):
    """An output does not say how many tokens it has, and the environment's budget limits tokens."""


class BudgetOverrunError(SrpoError, ValueError):
    """An output has more tokens than its member's share of the budget; it is refused, and the event stays pending."""


class BudgetExhaustedError(SrpoError, RuntimeError):
    """The budget has no room for what a schedule asks for; raised inside the schedule, which may end otherwise.

    Args:
        limit: Name of the limit, such as ``team_tokens``.
        detail: What was needed and what was left.
    """

    def __init__(self, limit: str, detail: str) -> None:
        super().__init__(limit, detail)
        self.limit = limit

    def __str__(self) -> str:
        """Return the limit and what was missing."""
        return f"budget of {self.args[0]} is used up: {self.args[1]}"

    @property
    def stopped_by(self) -> str:
        """What ``info["stopped_by"]`` says of an episode that ends for it: ``budget.team_tokens``, for instance."""
        return f"budget.{self.limit}"


class ScheduleError(SrpoError, TypeError):
    """A workflow's schedule yielded or returned something that is not an ask or an outcome."""


class UnknownIdError(SrpoError, KeyError):
    """An id is not registered; the message carries the nearest known ones."""

    def __str__(self) -> str:
        """Return the message as written (KeyError would show its repr)."""
        return str(self.args[0]) if self.args else ""


class RegistrationError(SrpoError, ValueError):
    """An environment cannot be registered: its id is malformed or taken, or its entry point names nothing."""


class ConformanceError(SrpoError, AssertionError):
    """An environment breaks the set-valued environment contract."""


# --- records ------------------------------------------------------------------------------------------------------


class RecordError(SrpoError, ValueError):
    """A stored record cannot be read; the message names file and line."""


class TornRecordError(RecordError):
    """A file of records ends in the middle of one, which was being written when its writer died."""


class SchemaVersionError(RecordError):
    """A stored record was written by a newer schema than this version knows."""


class StorageFullError(SrpoError, OSError):
    """There is no room for a file; the message names it and says how to go on."""


class ReplayError(SrpoError, ValueError):
    """A stored episode does not replay to what was recorded."""


class AuditError(SrpoError, ValueError):
    """A stored run breaks an invariant of the event contract."""


# --- tasks and grading --------------------------------------------------------------------------------------------


class DatasetError(SrpoError, ValueError):
    """A data set is missing, has an unknown format, or holds a row that cannot be used."""


class UnreadableGoldError(DatasetError):
    """A gold answer cannot be read by the grader, so no reward could ever be right."""


class CorpusError(DatasetError):
    """A corpus cannot be read: a row is damaged, or an id is missing or used twice; names file and line."""


# --- surroundings -------------------------------------------------------------------------------------------------


class SurroundingsError(SrpoError, RuntimeError):
    """Something outside the model failed; the episode says nothing about the policy."""


class ToolError(SurroundingsError):
    """A tool call (retrieval, code execution) failed after its retries."""


class RetrieverError(ToolError):
    """A retriever failed after its retries, or answered with something unusable."""


class RequestRejectedError(RetrieverError, ValueError):
    """A search server refuses a request as wrong and says why: a query too long, too many passages; no retry helps."""


class GraderUnavailableError(SurroundingsError):
    """The grading worker pool cannot be started or kept alive."""


class SandboxError(SurroundingsError):
    """Programs cannot be run safely: namespaces are denied, a tool is missing, or a box broke; no program did wrong."""


class NoEpisodeError(SurroundingsError):
    """Not one episode of a collection came through; carries the first reason."""


class EngineError(SurroundingsError):
    """A generation engine failed or answered with something unusable."""


class RankLostError(SurroundingsError):
    """Another process of a distributed run died, hangs, or never came."""


class WorkerLostError(SurroundingsError):
    """A process that does a run's work for others, such as an environment worker, died or cannot be reached."""


# --- retrieval ----------------------------------------------------------------------------------------------------


class SearchIndexError(SrpoError, ValueError):
    """An index is missing, damaged, of an unknown kind, or was built from another corpus or with other settings."""


class JavaRuntimeError(SrpoError, RuntimeError):
    """No Java runtime that can run Lucene was found; the message says what was looked for and how to get one."""


class EncoderLoadError(SrpoError, OSError):
    """An encoder's weights or tokenizer cannot be loaded; the message names the source and the remedy."""


class MissingPackageError(SrpoError, ImportError):
    """A package that no extra can bring is not installed; the message says how to install it."""


# --- training -----------------------------------------------------------------------------------------------------


class IncompleteEventError(SrpoError, ValueError):
    """An event has more or fewer member rows than its announced cardinality."""


class ShapeError(SrpoError, ValueError):
    """A tensor does not have the documented shape or type."""


class ConfigError(SrpoError, ValueError):
    """A recipe or override cannot be used; the message names the key and the remedy."""


class MissingExtraError(SrpoError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package!r} is not installed: run pip install 'srpo[{extra}]'")
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        """Pickle by the two constructor arguments, so the error survives a process boundary."""
        return type(self), (self.package, self.extra)


class CheckpointError(SrpoError, RuntimeError):
    """A checkpoint is missing, incomplete or does not fit the recipe."""


class PolicyLoadError(SrpoError, OSError):
    """A policy's weights or tokenizer cannot be loaded; the message names the source and the remedy."""


class NonFiniteError(SrpoError, FloatingPointError):
    """A return is not finite, or too many consecutive optimiser steps met a loss or gradient that is not."""


def near_miss(name: str, known: Iterable[str]) -> str:
    """Return a ``; did you mean 'x' or 'y'?`` suffix for an unknown name, or the known names when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(item) for item in close) + "?"
    return "; known: " + (", ".join(repr(item) for item in names) if names else "none")
