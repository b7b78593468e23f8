"""The words a schedule is written in: roles, asks, replies and outcomes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from srpo_envs.errors import ScheduleError, near_miss
from srpo_envs.parsing import Malformed, Parsed
from srpo_envs.records import frozen_json

if TYPE_CHECKING:
    from srpo_envs.tasks.base import TaskFamily


_ROLE_NAME = re.compile(r"[a-z]+\Z")
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


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

    def __post_init__(self) -> None:
        if not _ROLE_NAME.match(self.name):
            raise ScheduleError(f"role name {self.name!r}: expected lower-case letters only, such as 'solver'")
        if self.seats < 1 or self.max_new_tokens < 1:
            raise ValueError(
                f"role {self.name!r}: expected seats >= 1 and max_new_tokens >= 1, "
                f"got {self.seats} and {self.max_new_tokens}"
            )
        if not (math.isfinite(self.invalid_penalty) and self.invalid_penalty >= 0):
            raise ValueError(f"role {self.name!r}: expected invalid_penalty >= 0, got {self.invalid_penalty}")

    @classmethod
    def of(
        cls,
        tasks: TaskFamily,
        name: str,
        parse: Callable[[str], Parsed | Malformed],
        seats: int = 1,
        job: str = "",
    ) -> Role:
        """Return a role with the words and limits that a task family has for it.

        Args:
            tasks: The task family.
            name: Name of the role.
            parse: Reader of a response.
            seats: How many agents have the role.
            job: Under which name the family has the words, where it is not the role's own.
        """
        job = job or name
        return cls(
            name,
            prompt=tasks.prompt(job),
            parse=parse,
            seats=seats,
            max_new_tokens=tasks.max_new_tokens(job),
            stop=tasks.stop(job),
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
        """Join two asks into one set, for a transition that consumes outputs of several roles, or prompts, together.

        Raises:
            ScheduleError: an agent would sit in the set twice.
        """
        taken = {(role.name, seat) for role, seat, _ in self.seats}
        for role, seat, _ in other.seats:
            if (role.name, seat) in taken:
                raise ScheduleError(f"agent {role.name}_{seat} would sit in one set twice; ask another seat")
        label = self.state_label or other.state_label
        same = self.event_type == other.event_type
        event_type = self.event_type if same else f"{self.event_type}+{other.event_type}"
        return Ask(event_type, self.seats + other.seats, label)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a schedule ended."""

    reward: float
    """The team reward."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for people: answer, correct, ... Under ``metrics`` numbers by name, which a trainer averages over
    episodes and logs as ``env/<name>``."""
    is_truncated: bool = False
    """The schedule ran into its own limit without reaching an outcome."""


Schedule = Generator[Ask, list[Reply], Outcome]
"""What `SetEnv.schedule` returns: asks out, replies in, an outcome at the end."""


def checked_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outcome's ``info`` as frozen JSON values.

    Raises:
        ScheduleError: ``metrics`` is not a mapping of plain names to numbers.
        RecordError: something in it has no place in JSON.
    """
    frozen: dict[str, Any] = frozen_json(info)
    metrics = frozen.get("metrics", {})
    if not isinstance(metrics, Mapping) or not all(
        _METRIC_NAME.match(name) and isinstance(value, (int, float)) for name, value in metrics.items()
    ):
        raise ScheduleError(f"info['metrics']: expected numbers by names such as 'num_turns', got {metrics!r:.200}")
    return frozen


def index_roles(
    roles: Iterable[Role],
    invalid_penalty: float | Mapping[str, float] | None = None,
    max_new_tokens: int | Mapping[str, int] | None = None,
) -> dict[str, Role]:
    """Return roles by name, with penalties and limits overridden for all of them or for those a mapping names.

    Raises:
        ScheduleError: two roles share a name, or a mapping names no role.
    """
    indexed: dict[str, Role] = {}
    for role in roles:
        if role.name in indexed:
            raise ScheduleError(
                f"role name {role.name!r} is used twice; give the second role another name or more seats"
            )
        indexed[role.name] = role
    for name, penalty in _per_role("invalid_penalty", invalid_penalty, indexed).items():
        indexed[name] = replace(indexed[name], invalid_penalty=penalty)
    for name, limit in _per_role("max_new_tokens", max_new_tokens, indexed).items():
        indexed[name] = replace(indexed[name], max_new_tokens=limit)
    return indexed


def _per_role(key: str, override: Any, roles: Mapping[str, Role]) -> Mapping[str, Any]:
    if override is None:
        return {}
    if not isinstance(override, Mapping):
        return dict.fromkeys(roles, override)
    for name in override:
        if name not in roles:
            raise ScheduleError(f"{key}: no role {name!r}{near_miss(name, roles)}")
    return override
