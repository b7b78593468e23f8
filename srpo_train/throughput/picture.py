"""A traced step as a picture, for pages where no trace viewer runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srpo_train.reporting.drawing import COLORS, titled_figure

_NARROWEST = 0.06
"""Spans shorter than this share of the picture have no room for their name."""

_HEIGHT = 0.9
"""Of a bar, where one is the distance between two rows."""


def draw_trace(document: Mapping[str, Any], path: Path) -> None:
    """Write a picture of a checked trace: a row for each depth of nesting of each track, time from left to right.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    tracks = _rows(document["traceEvents"])
    names = list(dict.fromkeys(span["name"] for _, rows in tracks for row in rows for span in row))
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    num_rows = sum(len(rows) for _, rows in tracks)
    step = document["otherData"]["step"]
    title, subtitle, height = (
        f"Step {step}",
        "what every rank, engine and environment worker did",
        1.5 + 0.24 * num_rows,
    )
    with titled_figure(title, subtitle, width=9.0, height=height) as figure:
        axes = figure.add_axes((0.13, 0.5 / height, 0.85, 1 - 1.3 / height))
        _draw(axes, tracks, colors)
        figure.savefig(path, dpi=160)


def _draw(axes: Any, tracks: list[tuple[str, list[list[Mapping[str, Any]]]]], colors: Mapping[str, str]) -> None:
    whole_s = max(span["ts"] + span["dur"] for _, rows in tracks for row in rows for span in row) / 1e6
    height, ticks = 0.0, []
    for name, rows in tracks:
        ticks.append((height, name))
        for row in rows:
            bars = [(span["ts"] / 1e6, span["dur"] / 1e6) for span in row]
            axes.broken_barh(bars, (height - _HEIGHT / 2, _HEIGHT), color=[colors[span["name"]] for span in row])
            for span, (begun_s, long_s) in zip(row, bars, strict=True):
                if long_s >= _NARROWEST * whole_s:
                    axes.text(
                        begun_s + long_s / 2, height, span["name"], color="white", fontsize=6, ha="center",
                        va="center", clip_on=True,
                    )  # fmt: skip
            height += 1.0
        height += 0.3
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    axes.set_xlim(0.0, whole_s)
    axes.set_ylim(height - 0.8, -0.8)
    axes.set_xlabel("seconds")
    axes.grid(axis="y", visible=False)


def _rows(events: list[Mapping[str, Any]]) -> list[tuple[str, list[list[Mapping[str, Any]]]]]:
    """Return each track's name and its spans by depth of nesting."""
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    num_ranks = len({rank for rank, _ in names})
    found: dict[tuple[int, int], list[list[Mapping[str, Any]]]] = {track: [] for track in sorted(names)}
    spans = sorted((event for event in events if event["ph"] == "X"), key=lambda span: (span["ts"], -span["dur"]))
    open_ends: dict[tuple[int, int], list[float]] = {track: [] for track in names}
    for span in spans:
        track = span["pid"], span["tid"]
        ends = open_ends[track]
        while ends and ends[-1] <= span["ts"] + 1.0:  # times are rounded
            ends.pop()
        if len(found[track]) == len(ends):
            found[track].append([])
        found[track][len(ends)].append(span)
        ends.append(span["ts"] + span["dur"])
    return [
        (f"rank {track[0]}: {names[track]}" if num_ranks > 1 else names[track], rows) for track, rows in found.items()
    ]
