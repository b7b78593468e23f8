"""Spans as a file that trace viewers open: the Chrome trace event format, which https://ui.perfetto.dev reads.

One process a rank, one thread a track: the trainer, each engine, each environment worker. Spans of a track are nested;
where two overlap otherwise, the later one is put on a track of its own beside it.

Format: "Trace Event Format", complete events (``ph`` X) in microseconds and metadata events (``ph`` M) with names.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.errors import RecordError
from srpo_envs.storing import replace_whole
from srpo_train.throughput.recorder import Span

FOLDER = "trace"
"""Where in a run directory traces lie."""

_SLACK_US = 1.0
"""Times are rounded, so a span may seem to outlast the one around it by this much."""

_KINDS = ("trainer", "engine", "environment")
"""Order of tracks from top to bottom, by how their names begin; others follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeUse:
    """What a kind of span took in a step, over all its calls.

    Example:
        ``TimeUse(track="trainer", name="backward", num_calls=2, total_s=1.5, own_s=0.1)``
    """

    track: str
    """Who did it, the number of a worker left out."""
    name: str
    """What was done."""
    num_calls: int
    """How often."""
    total_s: float
    """Seconds, of all that did it together."""
    own_s: float
    """Of these, those outside of spans within."""


def trace_path(run_dir: Path, step: int) -> Path:
    """Return where the trace of a step lies."""
    return run_dir / FOLDER / f"step-{step:06d}.json"


def find_trace(run_dir: Path, step: int | None = None) -> Path:
    """Return the trace of a step, or the newest there is.

    Raises:
        RecordError: there is none.
    """
    found = sorted((run_dir / FOLDER).glob("step-*.json")) if step is None else [trace_path(run_dir, step)]
    if not found or not found[-1].exists():
        which = "no step" if step is None else f"step {step} is not"
        raise RecordError(f"{run_dir}: {which} traced; record one with [log] trace_steps or trace_every")
    return found[-1]


def write_trace(path: Path, spans_by_rank: Sequence[Sequence[Span]], *, step: int) -> None:
    """Write the spans of a step, whose clock begins at 0 with the first of them."""
    begun_s = min((span.begun_s for spans in spans_by_rank for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, spans in enumerate(spans_by_rank):
        events.append(_name("process_name", rank, 0, f"rank {rank}"))
        for number, (track, lane) in enumerate(_lanes(spans)):
            events.append(_name("thread_name", rank, number, track))
            events.append(_metadata("thread_sort_index", rank, number, {"sort_index": number}))
            events += [_event(span, rank, number, begun_s) for span in lane]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"step": step, "begun_s": begun_s},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, [json.dumps(document, separators=(",", ":")).encode()])


def read_trace(path: Path) -> dict[str, Any]:
    """Return a trace that has been checked.

    Raises:
        RecordError: it cannot be read, or is not a trace that viewers show rightly.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        check_trace(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: not a trace ({error}); record one with [log] trace_steps or trace_every") from error
    return document


def check_trace(document: Mapping[str, Any]) -> None:
    """Check the form of a trace: fields and their types, a name for every track, spans nested on each.

    Raises:
        RecordError: something is not as viewers expect it.
    """
    events, named = document["traceEvents"], set()
    for event in events:
        for key, kind in (("name", str), ("ph", str), ("pid", int), ("tid", int)):
            if not isinstance(event.get(key), kind):
                raise RecordError(f"trace event {event!r}: expected {key} to be {kind.__name__}")
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
        elif event["ph"] != "X" or not event["ts"] >= 0 or not event["dur"] >= 0:
            raise RecordError(f"trace event {event!r}: expected a complete span with ts and dur from 0 on")
    for (rank, number), spans in _by_track(events).items():
        if ("thread_name", rank, number) not in named:
            raise RecordError(f"trace: track {number} of rank {rank} has no name")
        _check_nesting(spans)


def time_use(document: Mapping[str, Any]) -> list[TimeUse]:
    """Return where the time of a trace went, by kind of track and name, longest first within a kind."""
    names = {
        (event["pid"], event["tid"]): str(event["args"]["name"])
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    calls: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for track, spans in _by_track(document["traceEvents"]).items():
        kind = names[track].partition(" (")[0]
        kind = kind.partition(" ")[0] if kind.startswith("environment") else kind
        for span, own_us in _own_times(spans):
            calls[kind, span["name"]].append((span["dur"] / 1e6, own_us / 1e6))
    found = [
        TimeUse(
            track=track,
            name=name,
            num_calls=len(times),
            total_s=sum(total for total, _ in times),
            own_s=sum(own for _, own in times),
        )
        for (track, name), times in calls.items()
    ]
    return sorted(found, key=lambda use: (*_order(use.track), -use.total_s))


def _lanes(spans: Iterable[Span]) -> Iterator[tuple[str, list[Span]]]:
    """Yield tracks by name with their spans; a track whose spans are not nested is parted into several."""
    by_track: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.begun_s, -span.duration_s)):
        by_track[span.track].append(span)
    for track in sorted(by_track, key=_order):
        lanes: list[tuple[list[Span], list[float]]] = []  # spans, and the ends of those that are open
        for span in by_track[track]:
            end_s = span.begun_s + span.duration_s
            lane = next((lane for lane in lanes if _fits(lane[1], span.begun_s, end_s)), None)
            if lane is None:
                lane = ([], [])
                lanes.append(lane)
            lane[0].append(span)
            lane[1].append(end_s)
        for number, (kept, _) in enumerate(lanes, start=1):
            yield (track if number == 1 else f"{track} ({number})"), kept


def _fits(open_ends: list[float], begun_s: float, end_s: float) -> bool:
    """Whether a span lies within the innermost open one of a lane; forgets those that are over."""
    while open_ends and open_ends[-1] <= begun_s:
        open_ends.pop()
    return not open_ends or end_s <= open_ends[-1]


def _order(track: str) -> tuple[int, str, int]:
    """Where a track stands: by kind, then by name, numbers as numbers."""
    kind = next((place for place, name in enumerate(_KINDS) if track.startswith(name)), len(_KINDS))
    text, _, number = track.rpartition(" ")
    return (kind, text, int(number)) if number.isdigit() else (kind, track, 0)


def _event(span: Span, rank: int, number: int, begun_s: float) -> dict[str, Any]:
    return {
        "name": span.name,
        "cat": span.category or "span",
        "ph": "X",
        "ts": round((span.begun_s - begun_s) * 1e6, 1),
        "dur": round(span.duration_s * 1e6, 1),
        "pid": rank,
        "tid": number,
        "args": dict(span.args),
    }


def _name(what: str, rank: int, number: int, name: str) -> dict[str, Any]:
    return _metadata(what, rank, number, {"name": name})


def _metadata(what: str, rank: int, number: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": number, "args": dict(args)}


def _by_track(events: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], list[Mapping[str, Any]]]:
    found: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return {track: sorted(spans, key=lambda span: (span["ts"], -span["dur"])) for track, spans in found.items()}


def _check_nesting(spans: Iterable[Mapping[str, Any]]) -> None:
    ends: list[float] = []
    for span in spans:
        while ends and ends[-1] <= span["ts"] + _SLACK_US:
            ends.pop()
        if ends and span["ts"] + span["dur"] > ends[-1] + _SLACK_US:
            raise RecordError(f"trace event {span!r}: it outlasts the span it lies in")
        ends.append(span["ts"] + span["dur"])


def _own_times(spans: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Return each span with its microseconds outside of the spans directly within it."""
    own = [span["dur"] for span in spans]
    around: list[int] = []
    for index, span in enumerate(spans):
        while around and _end(spans[around[-1]]) <= span["ts"] + _SLACK_US:
            around.pop()
        if around:
            own[around[-1]] -= span["dur"]
        around.append(index)
    return [(span, max(left, 0.0)) for span, left in zip(spans, own, strict=True)]


def _end(span: Mapping[str, Any]) -> float:
    return float(span["ts"] + span["dur"])
