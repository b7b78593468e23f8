r"""Scripted members that write right and spoiled responses for every role, inside the real environment.

The prompts are exactly those a policy will meet, because the environment writes them. At each event an expert with one
set of habits writes the response a policy shall imitate, and an expert with other habits writes the response that the
environment consumes, so that clean answers are also learnt in bad company::

    for example in play_examples(env, ArithmeticCast, task_index=3, rng=rng, target=CLEAN, committed=SPOILED):
        example.event_type, example.prompt, example.response
        # 'solver', 'Compute 3*7-4 ...\nSolve.', '<think>3*7=1-4=7</think>\\boxed{7}'
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError
from srpo_envs.records import ActiveSet, Event, Member
from srpo_envs.tasks.base import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """How often an expert errs; a world adds its own kinds. Every field is a probability and 0 is flawless."""

    malformed: float = 0.0
    """A response of any role is cut before its decision is complete."""


HabitsT = TypeVar("HabitsT", bound=Habits)
Expert = Callable[[Member, HabitsT, np.random.Generator], str]
"""Writes one response in a role."""


@dataclass(frozen=True, slots=True)
class Example:
    """One response to imitate."""

    event_type: str
    """The kind of event."""
    prompt: str
    """The member's prompt, as the environment wrote it."""
    response: str
    """The text to write."""


class Cast(abc.ABC, Generic[HabitsT]):
    """The experts of one episode, who know its answer and watch what the team does.

    Args:
        env: The environment that is played.
        task: Its task.
    """

    def __init__(self, env: SetEnv, task: Task) -> None:
        self.env = env
        self.task = task

    @abc.abstractmethod
    def parts(self) -> Mapping[str, Expert[HabitsT]]:
        """Return the expert of each role."""

    @abc.abstractmethod
    def watch(self, event: Event) -> None:
        """Take note of what has been committed."""

    def respond(self, member: Member, habits: HabitsT, rng: np.random.Generator) -> str:
        """Write one response in a member's role.

        Args:
            member: Who is asked, and in which words.
            habits: How often the expert errs.
            rng: Source of all choices.

        Raises:
            ConfigError: no expert plays the role.
        """
        parts = self.parts()
        if member.role not in parts:
            raise ConfigError(f"no expert plays role {member.role!r}; expected one of {', '.join(sorted(parts))}")
        text = parts[member.role](member, habits, rng)
        return text[: int(rng.integers(len(text) - 2))] if rng.random() < habits.malformed else text


def play_examples(
    env: SetEnv,
    hire: Callable[[SetEnv, Task], Cast[HabitsT]],
    *,
    task_index: int,
    rng: np.random.Generator,
    target: HabitsT,
    committed: HabitsT,
) -> Iterator[Example]:
    """Play one episode and yield one example for each distinct prompt of every event.

    Args:
        env: An environment whose roles the cast plays.
        hire: The class of the cast.
        task_index: Which task.
        rng: Source of all choices.
        target: Habits of the responses to imitate.
        committed: Habits of the responses the environment consumes.
    """
    cast = hire(env, env.tasks.task(task_index))
    active: ActiveSet | None = env.reset(options={"task_index": task_index})
    while active is not None:
        for member in {member.prompt: member for member in active.members}.values():
            yield Example(active.event_type, member.prompt, cast.respond(member, target, rng))
        result = env.step(active.outputs([cast.respond(member, committed, rng) for member in active.members]))
        cast.watch(result.event)
        active = result.next


def write_verdict(is_approved: bool) -> str:
    """Return a verifier's response."""
    return f"<verify>{'approve' if is_approved else 'reject'}</verify>"


def write_route(numbers: Iterable[int]) -> str:
    """Return a router's response that activates these members."""
    return f"<route>{','.join(map(str, numbers))}</route>"
