"""Asking an index for episodes in the words of a person: ``reward<1 role:verifier is:malformed "the capital"``.

Words are searched in what was said. ``key:value`` picks by what an episode has, ``key>=value`` and ``key:2..4``
compare, a minus before either negates, and a text with spaces stands in quotes.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from srpo_envs.errors import ConfigError, near_miss
from srpo_train.viewer.index import COLUMNS, EpisodeIndex

NUMBERS = ("step", "reward", "penalty", "events", "calls", "tokens", "tools", "malformed", "k", "version")
"""Keys that compare numbers."""

LABELS = ("role", "type", "k", "version", "policy", "reason", "tool")
"""Keys that ask whether some event or member of an episode is so."""

TEXTS = {"task": "e.task_id", "group": "e.group_id", "episode": "e.episode_id", "file": "f.name", "answer": "e.answer"}
"""Keys that ask for a text, in which ``*`` stands for anything."""

FLAGS = {
    "malformed": "e.malformed > 0",
    "correct": "e.correct",
    "wrong": "NOT e.correct",
    "truncated": "e.truncated",
    "searched": "e.tools > 0",
}
"""What ``is:`` may be followed by."""

SORTS = {
    "newest": "e.step DESC, e.id DESC",
    "oldest": "e.step, e.id",
    "best": "e.reward DESC, e.step DESC, e.id DESC",
    "worst": "e.reward, e.step DESC, e.id DESC",
    "longest": "e.tokens DESC, e.step DESC, e.id DESC",
    "malformed": "e.malformed DESC, e.step DESC, e.id DESC",
}
"""Orders a list may have."""

MAX_PAGE = 500
"""Most episodes of one page."""

_MAX_NUMBER = 2**63 - 1  # SQLite's

_TERM = re.compile(
    r"""(?P<minus>-?)(?:(?P<key>[A-Za-z_]+)(?P<operator><=|>=|:|=|<|>))?(?:"(?P<quoted>[^"]*)"?|(?P<plain>[^\s"]+))"""
)
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_KEYS = (*NUMBERS, *LABELS, *TEXTS, "is", "alarm")
_SHOWN = f"e.id, e.step, f.name AS file, {', '.join(f'e.{name}' for name in COLUMNS)}"
_FROM = "FROM episodes e JOIN files f ON f.id = e.file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What is asked, as a condition on episodes."""

    conditions: tuple[str, ...] = ()
    """SQL, all of which must hold."""
    values: tuple[Any, ...] = ()
    """What their question marks stand for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some of the episodes a query finds."""

    total: int
    """All it finds."""
    newest: int
    """Number of the newest episode there was; a later page asks for none after it, so that pages do not shift."""
    rows: tuple[Mapping[str, Any], ...]
    """The episodes: the columns of `srpo_train.viewer.index.COLUMNS`, ``id``, ``step`` and ``file``."""


@dataclass(slots=True)
class _Builder:
    conditions: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, is_negated: bool, condition: str, *values: Any) -> None:
        self.conditions.append(f"NOT ({condition})" if is_negated else condition)
        self.values.extend(values)


def parse_query(text: str, alarm_steps: Mapping[str, Sequence[int]] | None = None) -> Query:
    """Read what a person asks.

    Args:
        text: See the module.
        alarm_steps: Steps at which each alarm lasted, for ``alarm:name``.

    Raises:
        ConfigError: a key or a value is not known; names the nearest.
    """
    builder = _Builder()
    words = []
    for term in _TERM.finditer(text):
        is_negated = bool(term["minus"])
        value = term["plain"] if term["quoted"] is None else term["quoted"]
        if term["key"] is None:
            words.append((is_negated, value))
        elif term["key"] in _KEYS:
            _add_key(builder, is_negated, term["key"], term["operator"], value, alarm_steps or {})
        else:
            raise ConfigError(f"{term[0]}: no key {term['key']!r}{near_miss(term['key'], _KEYS)}")
    for is_negated, word in words:
        if found := re.findall(r"\w+", word):
            phrase = " ".join(found)
            builder.add(is_negated, "e.id IN (SELECT rowid FROM words WHERE words MATCH ?)", f'"{phrase}" *')
    return Query(conditions=tuple(builder.conditions), values=tuple(builder.values))


def find(
    index: EpisodeIndex, query: Query, *, sort: str = "newest", offset: int = 0, limit: int = 50, newest: int = 0
) -> Page:
    """Return a page of what a query finds.

    Args:
        index: Where.
        query: What.
        sort: Key of `SORTS`.
        offset: Episodes to pass over.
        limit: Most episodes, at most `MAX_PAGE`.
        newest: Leave out what came after this episode, as an earlier page named it; 0 leaves out none.

    Raises:
        ConfigError: there is no such order.
    """
    if sort not in SORTS:
        raise ConfigError(f"sort {sort!r}: expected one of {', '.join(SORTS)}")
    where, values = _where(query)
    offset, newest = (max(0, min(number, _MAX_NUMBER)) for number in (offset, newest))
    with index.reading() as connection:
        newest = newest or _newest(connection)
        bound = (*values, newest)
        (total,) = connection.execute(f"SELECT count(*) {_FROM} WHERE {where} AND e.id <= ?", bound).fetchone()
        rows = connection.execute(
            f"SELECT {_SHOWN} {_FROM} WHERE {where} AND e.id <= ? ORDER BY {SORTS[sort]} LIMIT ? OFFSET ?",
            (*bound, max(0, min(limit, MAX_PAGE)), offset),
        ).fetchall()
    return Page(total=total, newest=newest, rows=tuple(map(dict, rows)))


def label_counts(index: EpisodeIndex) -> dict[str, list[tuple[str, int]]]:
    """Return the values of each kind of label with the number of episodes that have it, most frequent first."""
    counts: dict[str, list[tuple[str, int]]] = {}
    with index.reading() as connection:
        for kind, value, count in connection.execute(
            "SELECT kind, value, n FROM labels JOIN (SELECT label, count(*) AS n FROM labelled GROUP BY label) "
            "ON label = id ORDER BY n DESC, value"
        ):
            counts.setdefault(kind, []).append((value, count))
    return counts


def task_ids(index: EpisodeIndex, beginning: str, limit: int = 20) -> list[str]:
    """Return ids of tasks that begin with a text, in order."""
    with index.reading() as connection:
        rows = connection.execute(
            "SELECT DISTINCT task_id FROM episodes WHERE task_id >= ? AND task_id < ? ORDER BY task_id LIMIT ?",
            (beginning, beginning + "\U0010ffff", limit),
        ).fetchall()
    return [row[0] for row in rows]


def _newest(connection: sqlite3.Connection) -> int:
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM episodes").fetchone()
    return int(newest)


def _where(query: Query) -> tuple[str, tuple[Any, ...]]:
    return " AND ".join(query.conditions) or "1", query.values


def _add_key(
    builder: _Builder, is_negated: bool, key: str, operator: str, value: str, alarm_steps: Mapping[str, Sequence[int]]
) -> None:
    if key == "is":
        if value not in FLAGS:
            raise ConfigError(f"is:{value}: expected one of {', '.join(FLAGS)}")
        builder.add(is_negated, FLAGS[value])
    elif key == "alarm":
        _add_alarm(builder, is_negated, value, alarm_steps)
    elif key in TEXTS:
        pattern = value if "*" in value else _escaped(value)
        builder.add(is_negated, f"{TEXTS[key]} GLOB ?", pattern)
    elif key in LABELS and operator in (":", "=") and not _RANGE.fullmatch(value):
        has_label = "e.id IN (SELECT episode FROM labelled WHERE label IN (SELECT id FROM labels WHERE kind = ? AND "
        builder.add(is_negated, f"{has_label}value GLOB ?))", key, value if "*" in value else _escaped(value))
    elif key in NUMBERS:
        _add_number(builder, is_negated, key, operator, value)
    else:
        raise ConfigError(f"{key}{operator}{value}: {key} does not compare; write {key}:{value}")


def _add_number(builder: _Builder, is_negated: bool, key: str, operator: str, value: str) -> None:
    if found := _RANGE.fullmatch(value):
        builder.add(is_negated, f"e.{key} BETWEEN ? AND ?", float(found[1]), float(found[2]))
    elif re.fullmatch(_NUMBER, value):
        builder.add(is_negated, f"e.{key} {'=' if operator == ':' else operator} ?", float(value))
    else:
        raise ConfigError(
            f"{key}{operator}{value}: expected a number, such as {key}>=1, or a range, such as {key}:0..1"
        )


def _add_alarm(builder: _Builder, is_negated: bool, name: str, alarm_steps: Mapping[str, Sequence[int]]) -> None:
    chosen = alarm_steps if name in ("", "any", "*") else {name: alarm_steps.get(name, ())}
    steps = sorted({step for found in chosen.values() for step in found})
    builder.add(is_negated, f"coalesce(e.step, -1) IN ({', '.join('?' * len(steps))})", *steps)


def _escaped(value: str) -> str:
    """A text as a pattern that only matches itself."""
    return re.sub(r"([\[?*])", r"[\1]", value)
