"""Asking a process of the cluster for something: its answer, its own error, or the news that it is lost.

An error of the project is an answer like any other. It comes back as it was raised there, so that what is told apart
here (bad surroundings, misuse, an engine that failed) is told apart across processes too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from srpo_envs.errors import WorkerLostError


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call in another process came to."""

    value: Any = None
    """What it returned."""
    error: Exception | None = None
    """What it raised instead."""


def answered(call: Callable[[], Any]) -> Answer:
    """Make a call and return what came of it, an error included."""
    try:
        return Answer(call())
    except Exception as error:  # the boundary of a process: raised again where it was asked for
        return Answer(error=error)


class Line(Protocol):
    """A process that can be asked."""

    @property
    def name(self) -> str:
        """Its seat, such as ``environments 0``."""
        ...

    def send(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Ask for something at once, and return what waits for the answer.

        The wait raises what was raised there, and WorkerLostError when the process died or cannot be reached.
        """
        ...


class ActorLine:
    """A line to a Ray actor whose methods return an `Answer`.

    Args:
        name: Its seat.
        actor: The actor's handle.
        timeout_s: How long an answer may take; an actor that takes longer hangs, and is killed so that Ray starts it
            again. None where each call has a deadline of its own.
    """

    def __init__(self, name: str, actor: Any, *, timeout_s: float | None = None) -> None:
        self._name = name
        self._actor = actor
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        """The actor's seat."""
        return self._name

    def send(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Call a method of the actor; see `Line.send`."""
        from ray.exceptions import ActorUnavailableError, RayActorError

        try:
            reference = getattr(self._actor, method).remote(*arguments)
        except (ActorUnavailableError, RayActorError) as error:
            raise _lost(self._name, error) from error
        return functools.partial(self._wait, reference)

    def _wait(self, reference: Any) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError

        try:
            answer: Answer = ray.get(reference, timeout=self._timeout_s)
        except GetTimeoutError as error:
            ray.kill(self._actor, no_restart=False)
            raise WorkerLostError(f"{self._name} did not answer for {self._timeout_s:g} s and is killed") from error
        except (RayActorError, ObjectLostError) as error:  # it died, restarts, or its machine took the answer along
            raise _lost(self._name, error) from error
        if answer.error is not None:
            raise answer.error
        return answer.value


def _lost(name: str, error: Exception) -> WorkerLostError:
    return WorkerLostError(f"{name} is lost ({type(error).__name__}: {str(error).splitlines()[0]})")
