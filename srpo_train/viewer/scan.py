"""What an index must know of an episode, read from its lines in a log that may still be growing or be damaged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.records import SCHEMA_VERSION
from srpo_train.viewer.text import one_line, written
from srpo_train.viewer.timeline import question_of

_MAX_SEARCHED = 20_000
"""Characters of an episode that can be searched; a megabyte line must not become a megabyte of index."""
_MAX_LABEL = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """One episode as the index holds it."""

    start: int
    """Byte at which its lines begin."""
    end: int
    """Byte after its last line."""
    columns: Mapping[str, Any]
    """Values by column, see `srpo_train.viewer.index`."""
    labels: frozenset[tuple[str, str]]
    """(kind, value) that the episode can be picked by: roles, event types, cardinalities, versions, reasons, tools."""
    words: str
    """What a search of words looks at: the task, the responses, what tools were asked, and the answer."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Lines that are no episode."""

    end: int
    """Byte after them."""


def scan(path: Path, start: int) -> Iterator[Facts | Damage]:
    """Yield the complete episodes of a log from a byte on, and what is damaged between them.

    An episode at the end of the file that is not yet whole, or whose last line has no end, is not yielded: it is being
    written, and the next scan finds it.
    """
    with path.open("rb") as file:
        file.seek(start)
        pending: _Pending | None = None
        end = start
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            begin, end = end, end + len(raw)
            line = _load(raw)
            if line is not None and line.get("kind") == "episode":
                if pending is not None:  # the one before lacks events, and another follows: they never come
                    yield Damage(begin)
                pending = _Pending(begin, line)
            elif line is not None and pending is not None:
                pending.events.append(line)
            else:
                pending = None
                yield Damage(end)
            if pending is not None and pending.is_whole:
                facts = pending.facts(end)
                yield Damage(end) if facts is None else facts
                pending = None


class _Pending:
    """An episode of which some events may be missing yet."""

    def __init__(self, start: int, head: dict[str, Any]) -> None:
        self._start = start
        self._head = head
        self.events: list[dict[str, Any]] = []

    @property
    def is_whole(self) -> bool:
        announced = self._head.get("events")
        return not isinstance(announced, int) or len(self.events) >= announced

    def facts(self, end: int) -> Facts | None:
        """What the index holds of it; None where a field is not what it should be."""
        try:
            return Facts(
                start=self._start,
                end=end,
                columns=_columns(self._head, self.events),
                labels=frozenset(_labels(self.events)),
                words=_words(self._head, self.events),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def _load(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    is_known = isinstance(line, dict) and isinstance(line.get("schema"), int) and line["schema"] <= SCHEMA_VERSION
    return line if is_known else None


def _columns(head: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    members = [member for event in events for member in event["members"]]
    calls = [*head["setup_tool_calls"], *(call for event in events for call in event["tool_calls"])]
    return {
        "episode_id": str(head["episode_id"]),
        "task_id": str(head["task_id"]),
        "group_id": str(head["group_id"]),
        "question": one_line(question_of(head["task"])),
        "answer": one_line(_answer(head), 80),
        "reward": float(head["reward"]),
        "penalty": float(head["penalty"]),
        "correct": bool(head["info"].get("correct", head["reward"] >= 1.0)),
        "truncated": bool(head["truncated"]),
        "events": len(events),
        "calls": len(members),
        "malformed": sum(bool(member["malformed_reason"]) for member in members),
        "tokens": sum(sum(member["token_mask"]) for member in members),
        "tools": sum(call["kind"] == "tool" for call in calls),
        "k": max((int(event["cardinality"]) for event in events), default=0),
        "version": max((int(member["policy_version"]) for member in members), default=0),
    }


def _answer(head: dict[str, Any]) -> str:
    answer = head["info"].get("answer")
    return "" if answer is None else written(answer)


def _labels(events: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for event in events:
        yield "type", _label(event["event_type"])
        yield "k", str(int(event["cardinality"]))
        for member in event["members"]:
            yield "role", _label(member["role"])
            yield "version", str(int(member["policy_version"]))
            if member["policy_id"]:
                yield "policy", _label(member["policy_id"])
            if member["malformed_reason"]:
                yield "reason", _label(member["malformed_reason"])
        for call in event["tool_calls"]:
            if call["kind"] == "tool":
                yield "tool", _label(call["name"])


def _label(text: Any) -> str:
    return one_line(str(text), _MAX_LABEL)


def _words(head: dict[str, Any], events: list[dict[str, Any]]) -> str:
    texts = [head["task_id"], question_of(head["task"]), _answer(head)]
    for event in events:
        texts += [member["text"] for member in event["members"]]
        texts += [member["malformed_reason"] for member in event["members"]]
        texts += [str(value) for call in event["tool_calls"] for value in _arguments(call)]
    return _bounded(texts)


def _arguments(call: dict[str, Any]) -> list[Any]:
    arguments = call["arguments"]
    return list(arguments.values()) if isinstance(arguments, dict) else [arguments]


def _bounded(texts: list[str]) -> str:
    """Join texts, each cut to its share where all together are too long."""
    if sum(map(len, texts)) > _MAX_SEARCHED:
        share = _MAX_SEARCHED // len(texts)
        texts = [text[:share] for text in texts]
    return "\n".join(itertools.filterfalse(str.isspace, texts)).encode("utf-8", "replace").decode()
