r"""The facts an environment announces and a trainer consumes, as frozen records with JSON Lines both ways.

One *event* is one environment transition. The *active set* of an event is the minimal set of newly sampled outputs
that this transition consumes (SRPO, definition 1). A verdict read by the environment is an event with one member; three
drafts committed together are one event with three members::

    active = env.reset(seed=0)                        # ActiveSet: event 'a1b2/e0', type 'solver', K = 3
    result = env.step(active.outputs(["\\boxed{4}", "\\boxed{4}", "\\boxed{5}"]))
    result.event.cardinality                          # 3
    result.event.members[2].parsed                    # '5'
    result.next.event_id                              # 'a1b2/e1'

On disk an episode is one line of kind ``episode`` followed by one line of kind ``event`` for each of its events. Every
line carries the schema version, so a reader can tell a newer file from a damaged one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar

from srpo_envs.errors import MemberMismatchError, RecordError, SchemaVersionError, TornRecordError
from srpo_envs.storing import replace_whole, storing

SCHEMA_VERSION = 1

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One seat of an active set: what one agent is asked for.

    Example:
        ``Member(index=1, agent="solver_1", role="solver", prompt="Compute 3+4.", max_new_tokens=64)``
    """

    index: int
    """Position in the set, 0 to K-1; the identity of the output within its event."""
    agent: str
    """PettingZoo agent name, ``role_number``."""
    role: str
    """The job; recipes map roles to policies."""
    prompt: str
    """What this member sees; derived from the pre-action state only."""
    max_new_tokens: int
    """Most tokens the output may have, in the policy's own tokens."""
    stop: tuple[str, ...] = ()
    """Texts after which generation ends; the stop text belongs to the output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberOutput:
    r"""One sampled output, addressed to one member of one event.

    Only the first three fields are needed to drive an environment; an engine fills the rest so that a trainer can learn
    from exactly the tokens that were sampled.

    Example:
        ``MemberOutput(event_id="a1b2/e0", member_index=0, text="\\boxed{7}")``
    """

    event_id: str
    """The event this output answers; a stale one is refused."""
    member_index: int
    """The seat this output fills."""
    text: str
    """The response as text; the environment reads nothing else."""
    policy_id: str = ""
    """Parameters that answered; empty when no policy is involved (a person, a script)."""
    policy_version: int = 0
    """Number of weight publications the policy had seen when it sampled."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the policy saw it."""
    token_ids: tuple[int, ...] = ()
    """The sampled tokens, end-of-sequence included; never re-encoded from text."""
    behavior_logprobs: tuple[float, ...] = ()
    """Natural-log probability of each sampled token under the sampling policy."""
    kept_token_ids: tuple[tuple[int, ...], ...] = ()
    """Where top-k or top-p removed tokens: for each sampled token those it was drawn from, itself among them; its
    log-probability is the one within them. Empty where nothing was removed, or nobody asked."""
    token_mask: tuple[int, ...] = ()
    """1 for each sampled token, 0 for a token of the environment inside the response; without token ids, as many ones
    as an endpoint says it sampled."""
    finish_reason: FinishReason = "stop"
    """``stop`` for a natural end, ``length`` for a cut one, ``abort`` for one the engine gave up (not trainable)."""
    timings: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Seconds by name: ``generate_s`` of generation and, where an engine knows it, ``queue_s`` of waiting before it;
    never part of an id, and ignored when records are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveSet:
    """The outputs the environment waits for: one event before its members have acted.

    Example:
        ``ActiveSet(event_id="a1b2/e0", state_id="9f..", event_type="solver", members=(m0, m1, m2), ...)`` has K = 3.
    """

    event_id: str
    """``episode_id/eN`` with N counting from 0."""
    state_id: str
    """Digest of the pre-action state: task, seed and everything consumed so far."""
    episode_id: str
    """The episode this event belongs to."""
    task_id: str
    """The task being solved."""
    event_type: str
    """What kind of decision this is (``solver``, ``verifier``, ``revision`` ...); comparison groups use it."""
    turn: int
    """Routing decision this event belongs to, from 0."""
    state_label: str
    """The pre-action state in a few words, for people reading an audit."""
    members: tuple[Member, ...]
    """One per seat, ordered by index."""

    @property
    def cardinality(self) -> int:
        """K, the number of outputs this transition consumes."""
        return len(self.members)

    def outputs(self, texts: Sequence[str]) -> list[MemberOutput]:
        """Return one plain output per member from K texts in member order.

        Raises:
            MemberMismatchError: the number of texts is not K.
        """
        if len(texts) != len(self.members):
            raise MemberMismatchError(
                f"event {self.event_id!r}: expected {len(self.members)} texts, one per member, got {len(texts)}"
            )
        return [
            MemberOutput(event_id=self.event_id, member_index=member.index, text=text)
            for member, text in zip(self.members, texts, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call the schedule made while the transition ran; its recorded result makes replay independent of the tool.

    Example:
        ``ToolCall(name="search", arguments={"query": "capital of Peru"}, result=["Lima ..."], kind="tool")``
    """

    name: str
    """Which tool."""
    arguments: Any
    """What was asked, as JSON values."""
    result: Any
    """What came back, as JSON values."""
    kind: Literal["tool", "grade"] = "tool"
    """``tool`` counts towards C_tool (eq. 8); ``grade`` is the environment's own scoring and costs nothing."""
    duration_s: float = field(default=0.0, compare=False)
    """Wall-clock seconds of the original call; ignored when records are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberRecord:
    """One output as it was consumed: seat, sampled tokens and what the parser read.

    Example:
        ``MemberRecord(member_index=0, agent="verifier_0", role="verifier", prompt="...", text="<verify>maybe</verify>",
        parsed=None, malformed_reason="no recognised verdict")``
    """

    member_index: int
    """The seat, 0 to K-1."""
    agent: str
    """PettingZoo agent name."""
    role: str
    """The job."""
    prompt: str
    """What the member saw, as text."""
    text: str
    """What it answered, as text."""
    parsed: Any = None
    """What the role's parser read, as JSON values; None when malformed."""
    malformed_reason: str = ""
    """Why the parser refused the text; empty when it is valid."""
    policy_id: str = ""
    """Parameters that answered."""
    policy_version: int = 0
    """Weight publications the policy had seen when it sampled."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as tokens."""
    token_ids: tuple[int, ...] = ()
    """The sampled tokens."""
    behavior_logprobs: tuple[float, ...] = ()
    """Log-probability of each token under the sampling policy."""
    kept_token_ids: tuple[tuple[int, ...], ...] = ()
    """For each token those that top-k and top-p left, itself among them; empty where nothing was removed."""
    token_mask: tuple[int, ...] = ()
    """1 on sampled tokens; without token ids, as many ones as an endpoint says it sampled."""
    finish_reason: FinishReason = "stop"
    """How the output ended."""
    timings: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Seconds by name; ignored when records are compared."""

    @property
    def is_valid(self) -> bool:
        """Whether the role's parser accepted the text."""
        return not self.malformed_reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One environment transition with the complete set of outputs it consumed: the unit of optimisation.

    Example:
        ``Event(event_id="a1b2/e1", state_id="9f..", event_type="verifier", cardinality=1, members=(record,), ...)``
    """

    event_id: str
    """``episode_id/eN``."""
    state_id: str
    """Digest of the pre-action state; equal ids mean the same task, seed and history."""
    episode_id: str
    """The episode."""
    task_id: str
    """The task."""
    group_id: str
    """Rollouts of one prompt share it; advantages compare within it."""
    event_type: str
    """Kind of decision."""
    turn: int
    """Routing decision, from 0."""
    state_label: str
    """The pre-action state in a few words."""
    cardinality: int
    """K as announced; an event with another number of members is incomplete."""
    members: tuple[MemberRecord, ...]
    """One per seat, ordered by index."""
    reward: float
    """Reward of this transition: the team reward at the end, minus this event's penalty."""
    penalty: float
    """Sum of invalid-action penalties of this event's members, at least 0."""
    team_return: float | None
    """R_e, the undiscounted sum of this and all later rewards; None until the episode has ended."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls made while this transition ran."""
    terminated: bool = False
    """The episode came to its natural end with this event."""
    truncated: bool = False
    """The episode was cut by a limit after this event."""

    @property
    def is_complete(self) -> bool:
        """Whether every announced member is present exactly once and none was aborted by its engine."""
        return [member.member_index for member in self.members] == list(range(self.cardinality)) and not any(
            member.finish_reason == "abort" for member in self.members
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """Everything from reset to the end; with it an episode replays without engine or tools.

    Example:
        ``Episode(episode_id="a1b2", env_id="srpo_envs/MathSolverVerifier-v0", seed=7, events=(e0, e1), reward=1.0)``
    """

    episode_id: str
    """Unique within a run."""
    env_id: str
    """Registered id, or the class name of an unregistered environment."""
    env_kwargs: Mapping[str, Any]
    """Arguments given to `make`, as JSON values, so that replay can rebuild the environment."""
    seed: int
    """Seed of the environment's own randomness in this episode."""
    task: Mapping[str, Any]
    """The task, with its gold answer."""
    task_id: str
    """The task's id."""
    group_id: str
    """Rollouts of one prompt share it."""
    events: tuple[Event, ...] = ()
    """In order."""
    reward: float = 0.0
    """Team reward of the outcome, penalties not included."""
    penalty: float = 0.0
    """Sum of all penalties."""
    terminated: bool = False
    """Natural end."""
    truncated: bool = False
    """Cut by a limit."""
    setup_tool_calls: tuple[ToolCall, ...] = ()
    """Calls made before the first event."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the workflow says of the outcome, such as the final answer and whether it is right."""

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def num_tokens(self) -> int:
        """C_tok of eq. 8: sampled tokens of all members of all events."""
        return sum(sum(member.token_mask) for event in self.events for member in event.members)

    @property
    def num_calls(self) -> int:
        """C_call of eq. 8: policy calls, the sum of cardinalities."""
        return sum(event.cardinality for event in self.events)

    @property
    def num_turns(self) -> int:
        """Turns that led to an event."""
        return 1 + max((event.turn for event in self.events), default=-1)

    @property
    def num_tool_calls(self) -> int:
        """C_tool of eq. 8: tool calls, grading not counted."""
        calls = [*self.setup_tool_calls, *(call for event in self.events for call in event.tool_calls)]
        return sum(call.kind == "tool" for call in calls)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one transition produced.

    Example:
        ``StepResult(event=e2, next=None, reward=1.0, terminated=True, truncated=False, info={"correct": True})``
    """

    event: Event
    """The transition that just happened."""
    next: ActiveSet | None
    """The next active set; None when the episode has ended."""
    reward: float
    """Equal to ``event.reward``."""
    terminated: bool
    """Natural end."""
    truncated: bool
    """Cut by a limit."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Empty until the end, then what the workflow says of the outcome."""


def frozen_json(value: Any) -> Any:
    """Return a JSON value with every list turned into a tuple, so that records compare equal after a round trip.

    Raises:
        RecordError: something in it has no place in JSON, such as an array, a set or an infinite number.
    """
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(frozen_json(item) for item in value)
    if isinstance(value, Mapping):
        return {str(key): frozen_json(item) for key, item in value.items()}
    raise RecordError(f"expected JSON values, got {type(value).__name__} {value!r:.80}; convert it first")


# --- JSON Lines ---------------------------------------------------------------------------------------------------


def _plain(record: Any) -> dict[str, Any]:
    """One level of a record as a dict; nested records are converted by json's ``default`` hook."""
    return {item.name: getattr(record, item.name) for item in dataclasses.fields(record)}


def _dumps(payload: Mapping[str, Any], record_id: str) -> str:
    try:
        return json.dumps(payload, default=_plain, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{record_id!r} cannot be written as JSON: {error}") from error


def episode_to_lines(episode: Episode) -> Iterator[str]:
    """Yield the JSON lines of one episode: the episode first, then its events in order.

    Raises:
        RecordError: a field holds something that is not JSON, such as a log-probability that is not a number.
    """
    head = _plain(episode)
    head["events"] = len(episode.events)
    yield _dumps({"schema": SCHEMA_VERSION, "kind": "episode", **head}, episode.episode_id)
    for event in episode.events:
        yield _dumps({"schema": SCHEMA_VERSION, "kind": "event", **_plain(event)}, event.event_id)


def write_episodes(path: str | os.PathLike[str], episodes: Iterable[Episode]) -> None:
    """Write episodes to a JSON Lines file that appears whole or not at all (written beside, then renamed).

    Raises:
        RecordError: a field holds something that is not JSON.
        StorageFullError: there is no room for it.
    """
    target = Path(path)
    with storing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    lines = (line.encode("ascii") + b"\n" for episode in episodes for line in episode_to_lines(episode))
    replace_whole(target, lines)


def read_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """Yield the episodes of a JSON Lines file.

    Raises:
        RecordError: a line is damaged, or an episode has other events than it announces; names file and line.
        TornRecordError: the same, where only the end of the file is missing; every episode before it was yielded.
        SchemaVersionError: a line was written by a newer version.
    """
    with Path(path).open("rb") as file:
        yield from parse_episodes(file, str(path))


def parse_episodes(lines: Iterable[bytes], where: str) -> Iterator[Episode]:
    """Yield the episodes of JSON lines, of which errors say that they stand `where`; see `read_episodes`."""
    head: _Line | None = None
    events: list[Event] = []
    for number, raw in enumerate(lines, start=1):
        try:
            line = _load_line(raw, f"{where}:{number}")
        except RecordError as error:
            if raw.endswith(b"\n"):
                raise
            if head is not None and head.fields.get("events") == len(events):  # the one before it is whole
                yield _assemble(head, events)
            raise TornRecordError(str(error)) from error
        if line.kind == "episode":
            if head is not None:
                yield _assemble(head, events)
            head, events = line, []
        elif head is None:
            raise RecordError(f"{line.where}: an event before any episode; the file's beginning is missing")
        else:
            events.append(_build_event(line, head))
    if head is None:
        return
    try:
        last = _assemble(head, events)
    except RecordError as error:
        announced = head.fields.get("events")
        if isinstance(announced, int) and len(events) < announced:
            raise TornRecordError(str(error)) from error
        raise
    yield last


@dataclass(frozen=True, slots=True)
class _Line:
    """One decoded line and where it stands."""

    where: str
    kind: str
    fields: dict[str, Any]


def _load_line(raw: bytes, where: str) -> _Line:
    try:
        payload = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not a JSON line ({error}); the file is damaged or was cut short") from error
    if not isinstance(payload, dict) or "schema" not in payload:
        raise RecordError(f"{where}: expected an object with a 'schema' field, got {raw[:60]!r}")
    version = payload.pop("schema")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{where}: written with schema {version!r}, this version reads up to {SCHEMA_VERSION}; upgrade srpo"
        )
    kind = payload.pop("kind", None)
    if kind not in ("episode", "event"):
        raise RecordError(f"{where}: expected kind 'episode' or 'event', got {kind!r}")
    return _Line(where, kind, payload)


def _assemble(head: _Line, events: list[Event]) -> Episode:
    announced = head.fields.get("events")
    if announced != len(events):
        raise RecordError(
            f"{head.where}: episode {head.fields.get('episode_id')!r} announces {announced!r} events, "
            f"{len(events)} follow; the file was cut short"
        )
    calls = _build_all(ToolCall, head.fields, "setup_tool_calls", head.where)
    return _build(Episode, {**head.fields, "events": tuple(events), "setup_tool_calls": calls}, head.where)


def _build_event(line: _Line, head: _Line) -> Event:
    members = _build_all(MemberRecord, line.fields, "members", line.where)
    calls = _build_all(ToolCall, line.fields, "tool_calls", line.where)
    event = _build(Event, {**line.fields, "members": members, "tool_calls": calls}, line.where)
    if event.episode_id != head.fields.get("episode_id"):
        raise RecordError(
            f"{line.where}: event {event.event_id!r} stands under episode {head.fields.get('episode_id')!r}; "
            f"were lines moved or lost?"
        )
    return event


_Record = TypeVar("_Record", Episode, Event, MemberRecord, ToolCall)


def _build_all(record: type[_Record], fields: Mapping[str, Any], key: str, where: str) -> tuple[_Record, ...]:
    items = fields.get(key, [])
    if not isinstance(items, list):
        raise RecordError(f"{where}: field {key!r}: expected a list, got {items!r:.60}")
    return tuple(_build(record, item, where) for item in items)


def _build(record: type[_Record], fields: Any, where: str) -> _Record:
    """Build a record from decoded JSON, checking names and types of its fields."""
    if not isinstance(fields, Mapping):
        raise RecordError(f"{where}: expected the fields of a {record.__name__}, got {fields!r:.60}")
    types = _FIELD_TYPES[record]
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in types:
            raise RecordError(f"{where}: {record.__name__} has no field {name!r}; was the line edited by hand?")
        values[name] = value if name in _BUILT_FIELDS else frozen_json(value)
        if not isinstance(values[name], types[name]):
            raise RecordError(f"{where}: {record.__name__} field {name!r} cannot be {value!r:.60}; the line is damaged")
    try:
        return record(**values)
    except TypeError as error:
        raise RecordError(f"{where}: incomplete {record.__name__}: {error}") from error


_BUILT_FIELDS = ("events", "members", "tool_calls", "setup_tool_calls")
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (float, int),
    "float | None": (float, int, NoneType),
    "FinishReason": str,
    "Any": object,
}


def _field_types(record: type[Any]) -> dict[str, type | tuple[type, ...]]:
    """The types a record's fields have in decoded JSON, from its annotations."""
    types: dict[str, type | tuple[type, ...]] = {}
    for item in dataclasses.fields(record):
        annotation = str(item.type)
        default = Mapping if annotation.startswith("Mapping") else tuple if annotation.startswith("tuple") else str
        types[item.name] = _JSON_TYPES.get(annotation, default)
    return types


_FIELD_TYPES = {record: _field_types(record) for record in (Episode, Event, MemberRecord, ToolCall)}
