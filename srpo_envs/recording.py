"""How an episode becomes a record that replays: ids, recorded calls, members and returns.

`SetEnv` drives a schedule; everything here is about what that leaves behind. State ids form a chain of digests that
needs no environment to verify, see `initial_state_id` and `next_state_id`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from srpo_envs.errors import MemberMismatchError, ReplayError, ScheduleError, StaleEventError
from srpo_envs.parsing import Malformed, Parsed
from srpo_envs.records import ActiveSet, Event, Member, MemberOutput, MemberRecord, ToolCall, frozen_json
from srpo_envs.schedule import Ask, Reply, Role

# --- ids ----------------------------------------------------------------------------------------------------------

_CANONICAL = json.JSONEncoder(separators=(",", ":"), sort_keys=True)


def digest(*parts: Any) -> str:
    """Return a 128-bit hexadecimal digest of JSON values; any text has one, lone surrogates included."""
    return hashlib.blake2b(_CANONICAL.encode(parts).encode("ascii"), digest_size=16).hexdigest()


def initial_state_id(env_id: str, task: Mapping[str, Any], seed: int, calls: Sequence[ToolCall]) -> str:
    """Return the id of the first pre-action state: environment, task, seed and what setup calls gave."""
    start = digest(env_id, task, seed)
    return digest(start, [call.result for call in calls]) if calls else start


def next_state_id(state_id: str, event_type: str, texts: Sequence[str], calls: Sequence[ToolCall]) -> str:
    """Return the id of the state after an event: the state before it, its outputs and what its calls gave."""
    return digest(state_id, event_type, texts, [call.result for call in calls])


# --- calls --------------------------------------------------------------------------------------------------------


class CallLog:
    """Runs the calls of a schedule and records them; during a replay hands out recorded results and runs nothing."""

    def __init__(self) -> None:
        self._made: list[ToolCall] = []
        self._tape: deque[ToolCall] | None = None

    def run(self, name: str, arguments: Any, function: Callable[[], Any], kind: Literal["tool", "grade"]) -> Any:
        """Return the result of a call, fresh or recorded.

        Raises:
            ReplayError: a replay makes another call than the record holds.
        """
        if self._tape is not None:
            call = self._recorded(name, arguments)
        else:
            started = time.perf_counter()
            result = frozen_json(function())
            call = ToolCall(
                name=name, arguments=arguments, result=result, kind=kind, duration_s=time.perf_counter() - started
            )
        self._made.append(call)
        return call.result

    def take(self) -> tuple[ToolCall, ...]:
        """Return the calls made since the last take."""
        made, self._made = tuple(self._made), []
        return made

    def start_replay(self, calls: Iterable[ToolCall]) -> None:
        """Answer from these records until `end_replay`."""
        self._tape = deque(calls)

    def end_replay(self) -> None:
        """Run calls for real again.

        Raises:
            ReplayError: a recorded call was not made again.
        """
        left, self._tape = self._tape, None
        if left:
            raise ReplayError(f"recorded call {left[0].name!r} was not made again; was the workflow changed?")

    def _recorded(self, name: str, arguments: Any) -> ToolCall:
        call = self._tape.popleft() if self._tape else None
        if call is None or (call.name, call.arguments) != (name, arguments):
            held = f"{call.name}({call.arguments!r})" if call else "no further call"
            raise ReplayError(
                f"the schedule called {name}({arguments!r}), the record holds {held}; was the workflow changed?"
            )
        return call


# --- members ------------------------------------------------------------------------------------------------------


def seat_members(ask: Ask, share: int | None = None) -> tuple[Member, ...]:
    """Return the members of an ask, indexed in its order, each with at most `share` tokens to sample."""
    return tuple(
        Member(
            index=index,
            agent=f"{role.name}_{seat}",
            role=role.name,
            prompt=prompt,
            max_new_tokens=role.max_new_tokens if share is None else min(role.max_new_tokens, share),
            stop=role.stop,
        )
        for index, (role, seat, prompt) in enumerate(ask.seats)
    )


def match_outputs(active: ActiveSet, outputs: Iterable[MemberOutput]) -> list[MemberOutput]:
    """Return the outputs ordered by member index.

    Raises:
        StaleEventError: an output answers another event.
        MemberMismatchError: a member is missing, unknown or answered twice, or something is not a `MemberOutput`.
    """
    by_index: dict[int, MemberOutput] = {}
    for output in outputs:
        if not isinstance(output, MemberOutput) or not isinstance(output.text, str):
            raise MemberMismatchError(
                f"event {active.event_id!r}: expected MemberOutput with a text, got {output!r:.80}; "
                f"build them with active.outputs(texts)"
            )
        if output.event_id != active.event_id:
            raise StaleEventError(
                f"output for event {output.event_id!r}, but {active.event_id!r} is pending; answer the pending set"
            )
        if output.member_index in by_index:
            raise MemberMismatchError(f"event {active.event_id!r}: member_index {output.member_index} answered twice")
        by_index[output.member_index] = output
    expected = range(active.cardinality)
    missing = [f"missing member_index {index}" for index in expected if index not in by_index]
    unknown = [f"unknown member_index {index}" for index in sorted(by_index) if index not in expected]
    if missing or unknown:
        raise MemberMismatchError(
            f"event {active.event_id!r}: expected {active.cardinality} members, got {len(by_index)} "
            f"({', '.join(missing + unknown)})"
        )
    return [by_index[index] for index in expected]


def read_reply(role: Role, member: Member, output: MemberOutput) -> Reply:
    """Return what the role's parser makes of an output.

    Raises:
        ScheduleError: the parser returned neither Parsed nor Malformed.
        RecordError: it read something that is not JSON.
    """
    read = role.parse(output.text)
    if isinstance(read, Parsed):
        parsed, reason = frozen_json(read.value), ""
    elif isinstance(read, Malformed):
        parsed, reason = None, read.reason or "malformed"
    else:
        raise ScheduleError(
            f"role {role.name!r}: its parser returned {read!r}; return Parsed(value) or Malformed(reason)"
        )
    return Reply(output.text, parsed, reason, member.agent, member.role, member.index)


_CARRIED = (
    "text",
    "policy_id",
    "policy_version",
    "prompt_token_ids",
    "token_ids",
    "behavior_logprobs",
    "kept_token_ids",
    "token_mask",
    "finish_reason",
    "timings",
)
"""Fields a member record takes from its output unchanged."""


def member_record(member: Member, output: MemberOutput, reply: Reply) -> MemberRecord:
    """Return the record of one consumed output."""
    return MemberRecord(
        member_index=member.index,
        agent=member.agent,
        role=member.role,
        prompt=member.prompt,
        parsed=reply.parsed,
        malformed_reason=reply.malformed_reason,
        **{name: getattr(output, name) for name in _CARRIED},
    )


def output_of(member: MemberRecord, event_id: str) -> MemberOutput:
    """Return the output a member record came from, addressed to `event_id`."""
    carried = {name: getattr(member, name) for name in _CARRIED}
    return MemberOutput(event_id=event_id, member_index=member.member_index, **carried)


# --- events -------------------------------------------------------------------------------------------------------


def with_returns(events: Sequence[Event]) -> tuple[Event, ...]:
    """Fill R_e, the undiscounted sum of the rewards from event e to the end."""
    filled: list[Event] = []
    total = 0.0
    for event in reversed(events):
        total += event.reward
        filled.append(dataclasses.replace(event, team_return=total))
    return tuple(reversed(filled))


def first_difference(recorded: Any, rebuilt: Any, path: str = "") -> str:
    """Name the first place where two records differ, as ``members[0].text: 'a' became 'b'``; empty if none does."""
    if recorded == rebuilt:
        return ""
    if dataclasses.is_dataclass(recorded) and type(recorded) is type(rebuilt):
        pairs = [
            (f".{item.name}", getattr(recorded, item.name), getattr(rebuilt, item.name))
            for item in dataclasses.fields(recorded)
        ]
    elif isinstance(recorded, tuple) and isinstance(rebuilt, tuple) and len(recorded) == len(rebuilt):
        pairs = [(f"[{index}]", *pair) for index, pair in enumerate(zip(recorded, rebuilt, strict=True))]
    else:
        return f"{path.lstrip('.')}: {recorded!r:.200} became {rebuilt!r:.200}"
    return next((found for step, old, new in pairs if (found := first_difference(old, new, path + step))), "")
