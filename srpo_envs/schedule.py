"""The words a schedule is written in: roles, asks, replies and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from srpo_envs.parsing import Malformed, Parsed

if TYPE_CHECKING:
    from srpo_envs.tasks.base import TaskFamily


@dataclass(frozen=True, slots=True)
class Role:
    """One job of a workflow: what it is told, how its text is read, and what a malformed text costs."""

    name: str
    """Lower-case letters; its agents are ``name_0`` to ``name_{seats-1}``."""
    prompt: str
    """Template with ``$placeholders`` filled from the task (``$question``) and the ask's context."""
    parse: Callable[[str], Parsed | Malformed]
    """Pure reader of a response."""
    seats: int = 1
    """How many agents have this role; a set may use any of them."""
    max_new_tokens: int = 1024
    """Most tokens of one response."""
    stop: tuple[str, ...] = ()
    """Texts after which generation ends."""
    invalid_penalty: float = 0.1
    """Subtracted from the event's reward for each malformed response of this role."""

    @classmethod
    def of(cls, tasks: TaskFamily, name: str, parse: Callable[[str], Parsed | Malformed], seats: int = 1) -> Role:
        """Return a role with the words and limits that a task family has for it."""
        return cls(
            name,
            prompt=tasks.prompt(name),
            parse=parse,
            seats=seats,
            max_new_tokens=tasks.max_new_tokens(name),
            stop=tasks.stop(name),
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """One member's response as a schedule sees it."""

    text: str
    """The response, unchanged."""
    parsed: Any
    """What the role's parser read; None when malformed."""
    malformed_reason: str
    """Why the parser refused; empty when valid."""
    agent: str
    """Who answered."""
    role: str
    """In which job."""
    member_index: int
    """In which seat of the set."""

    @property
    def is_valid(self) -> bool:
        """Whether the parser accepted the text."""
        return not self.malformed_reason


@dataclass(frozen=True, slots=True)
class Ask:
    """An announced active set, before ids: which seats are asked, and in which words."""

    event_type: str
    seats: tuple[tuple[Role, int, str], ...]
    state_label: str

    def __add__(self, other: Ask) -> Ask:
        """Join two asks into one set, for a transition that consumes outputs of several roles together."""
        return Ask(f"{self.event_type}+{other.event_type}", self.seats + other.seats, self.state_label)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a schedule ended."""

    reward: float
    """The team reward."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for people and metrics: answer, correct, ..."""
    is_truncated: bool = False
    """The schedule ran into its own limit without reaching an outcome."""


Schedule = Generator[Ask, list[Reply], Outcome]
"""What `SetEnv.schedule` returns: asks out, replies in, an outcome at the end."""
