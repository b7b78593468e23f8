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
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from srpo_envs.errors import RecordError, SchemaVersionError

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
    token_mask: tuple[int, ...] = ()
    """1 for each sampled token, 0 for a token of the environment inside the response."""
    finish_reason: FinishReason = "stop"
    """``stop`` for a natural end, ``length`` for a cut one, ``abort`` for one the engine gave up (not trainable)."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name, such as ``generate_s``; never part of an id."""


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
            ValueError: the number of texts is not K.
        """
        if len(texts) != len(self.members):
            raise ValueError(f"event {self.event_id!r}: expected {len(self.members)} texts, got {len(texts)}")
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
    duration_s: float = 0.0
    """Wall-clock seconds of the original call."""


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
    token_mask: tuple[int, ...] = ()
    """1 on sampled tokens."""
    finish_reason: FinishReason = "stop"
    """How the output ended."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name."""

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
    """Return a JSON value with every list turned into a tuple, so that records compare equal after a round trip."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen_json(item) for item in value)
    if isinstance(value, Mapping):
        return {str(key): frozen_json(item) for key, item in value.items()}
    return value


# --- JSON Lines ---------------------------------------------------------------------------------------------------


def _plain(record: Any) -> dict[str, Any]:
    """One level of a record as a dict; nested records are converted by json's ``default`` hook."""
    return {item.name: getattr(record, item.name) for item in dataclasses.fields(record)}


def _dumps(payload: Mapping[str, Any]) -> str:
    return json.dumps(payload, default=_plain, separators=(",", ":"), allow_nan=False)


def episode_to_lines(episode: Episode) -> Iterator[str]:
    """Yield the JSON lines of one episode: the episode first, then its events in order."""
    head = _plain(episode)
    head["events"] = len(episode.events)
    yield _dumps({"schema": SCHEMA_VERSION, "kind": "episode", **head})
    for event in episode.events:
        yield _dumps({"schema": SCHEMA_VERSION, "kind": "event", **_plain(event)})


def write_episodes(path: str | os.PathLike[str], episodes: Iterable[Episode]) -> None:
    """Write episodes to a JSON Lines file that appears whole or not at all (written beside, then renamed)."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        for episode in episodes:
            file.writelines(line + "\n" for line in episode_to_lines(episode))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)


def read_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """Yield the episodes of a JSON Lines file.

    Raises:
        RecordError: a line is damaged, or an episode has fewer events than it announces; names file and line.
        SchemaVersionError: a line was written by a newer version.
    """
    head: tuple[int, dict[str, Any], int] | None = None  # line number, fields, announced number of events
    events: list[Event] = []
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            payload = _load_line(line, where)
            if payload["kind"] == "episode":
                if head is not None:
                    yield _assemble(head, events, path)
                head, events = (number, payload, _announced_events(payload, where)), []
            elif head is None:
                raise RecordError(f"{where}: an event line before any episode line; the file's beginning is missing")
            else:
                events.append(_build_event(payload, where))
    if head is not None:
        yield _assemble(head, events, path)


def _load_line(line: str, where: str) -> dict[str, Any]:
    try:
        payload = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(f"{where}: not a JSON line ({error}); the file is damaged or was cut short") from error
    if not isinstance(payload, dict) or "schema" not in payload:
        raise RecordError(f"{where}: expected an object with a 'schema' field, got {line[:60]!r}")
    version = payload.pop("schema")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{where}: written with schema {version!r}, this version reads up to {SCHEMA_VERSION}; upgrade srpo"
        )
    if payload.get("kind") not in ("episode", "event"):
        raise RecordError(f"{where}: expected kind 'episode' or 'event', got {payload.get('kind')!r}")
    return payload


def _announced_events(payload: dict[str, Any], where: str) -> int:
    announced = payload.get("events")
    if not isinstance(announced, int):
        raise RecordError(f"{where}: an episode line must say its number of events, got {announced!r}")
    return announced


def _assemble(head: tuple[int, dict[str, Any], int], events: list[Event], path: str | os.PathLike[str]) -> Episode:
    number, payload, announced = head
    where = f"{path}:{number}"
    if announced != len(events):
        raise RecordError(
            f"{where}: episode {payload.get('episode_id')!r} announces {announced} events, "
            f"{len(events)} follow; the file was cut short"
        )
    calls = tuple(_build(ToolCall, call, where) for call in payload.get("setup_tool_calls", ()))
    fields = {**payload, "events": (), "setup_tool_calls": ()}
    episode = _build(Episode, fields, where)
    return dataclasses.replace(episode, events=tuple(events), setup_tool_calls=calls)


def _build_event(payload: dict[str, Any], where: str) -> Event:
    members = tuple(_build(MemberRecord, member, where) for member in payload.get("members", ()))
    calls = tuple(_build(ToolCall, call, where) for call in payload.get("tool_calls", ()))
    event = _build(Event, {**payload, "members": (), "tool_calls": ()}, where)
    return dataclasses.replace(event, members=members, tool_calls=calls)


def _build(record: type[Any], payload: Any, where: str) -> Any:
    if not isinstance(payload, Mapping):
        raise RecordError(f"{where}: expected the fields of a {record.__name__}, got {payload!r}")
    fields = {key: frozen_json(value) for key, value in payload.items() if key != "kind" or record is ToolCall}
    known = {item.name for item in dataclasses.fields(record)}
    if unknown := sorted(set(fields) - known):
        raise RecordError(f"{where}: {record.__name__} has no field {unknown[0]!r}; was the line edited by hand?")
    try:
        return record(**fields)
    except TypeError as error:
        raise RecordError(f"{where}: incomplete {record.__name__}: {error}") from error
