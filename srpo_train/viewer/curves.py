"""The metrics of a run as columns, read once and followed while it trains."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.errors import RecordError, UnknownIdError
from srpo_train.metrics import METRICS_FILE, metric_of, parse_metrics
from srpo_train.viewer.marks import Mark

_ALARM = "alarm/"


@dataclass(frozen=True, slots=True)
class AlarmSpan:
    """An alarm from when it was raised until it ended."""

    name: str
    """Which."""
    first: int
    """Step at which it was raised."""
    last: int
    """Newest step at which it lasted."""


class Curves:
    """The metrics of one run.

    Args:
        run_dir: The run; a file that is not there yet has no values.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / METRICS_FILE
        self._lock = threading.Lock()
        self._mark: Mark | None = None
        self._lines: list[dict[str, float]] = []
        self.epoch = 0
        """Rises when what was read before no longer holds, as after a resume; a reader then begins anew."""
        self.problem = ""
        """What is wrong with the file; empty when nothing is."""

    def update(self) -> int:
        """Read what the file has gained and return the number of lines."""
        with self._lock:
            try:
                self._read_on()
                self.problem = ""
            except FileNotFoundError:
                self._begin()
            except (OSError, RecordError) as error:
                self.problem = str(error)
        return len(self._lines)

    @property
    def num_lines(self) -> int:
        """Lines that were read."""
        return len(self._lines)

    @property
    def last_step(self) -> int | None:
        """The newest step; None before any."""
        return int(self._lines[-1]["step"]) if self._lines else None

    def names(self) -> list[dict[str, str]]:
        """Return every metric there is: name, name in the table, unit and meaning."""
        found = dict.fromkeys(name for line in self._lines for name in line if name != "step")
        return [_described(name) for name in found]

    def columns(self, names: Sequence[str], after: int = 0) -> dict[str, Any]:
        """Return values from a line on, as JSON: None where a line has none or no finite one.

        Returns:
            ``step``, ``tokens`` and ``seconds`` to put on the horizontal axis, the last two summed over the run, and
            ``series`` by name.
        """
        lines = self._lines
        tokens = list(itertools.accumulate(line.get("rollout/num_tokens", 0) for line in lines))
        seconds = list(
            itertools.accumulate(line.get("time/step_s", 0.0) + line.get("time/eval_s", 0.0) for line in lines)
        )
        return {
            "step": [line["step"] for line in lines[after:]],
            "tokens": tokens[after:],
            "seconds": [round(value, 3) for value in seconds[after:]],
            "series": {name: [_finite(line.get(name)) for line in lines[after:]] for name in names},
        }

    def alarms(self) -> list[AlarmSpan]:
        """Return every alarm the run raised, in order."""
        spans: list[AlarmSpan] = []
        open_spans: dict[str, AlarmSpan] = {}
        for line in self._lines:
            step = int(line["step"])
            lasting = {name.removeprefix(_ALARM) for name in line if name.startswith(_ALARM) and line[name]}
            for name in set(open_spans) - lasting:
                spans.append(open_spans.pop(name))
            for name in lasting:
                first = open_spans[name].first if name in open_spans else step
                open_spans[name] = AlarmSpan(name, first, step)
        return sorted([*spans, *open_spans.values()], key=lambda span: (span.first, span.name))

    def alarm_steps(self) -> dict[str, list[int]]:
        """Return the steps at which each alarm lasted."""
        steps: dict[str, list[int]] = {}
        for line in self._lines:
            for name, value in line.items():
                if name.startswith(_ALARM) and value:
                    steps.setdefault(name.removeprefix(_ALARM), []).append(int(line["step"]))
        return steps

    def _read_on(self) -> None:
        if self._mark is not None and not self._mark.holds(self._path):
            self._begin()
        start = self._mark.offset if self._mark else 0
        if self._mark is not None and self._path.stat().st_size == start:
            return
        with self._path.open("rb") as file:
            file.seek(start)
            whole = file.read().rpartition(b"\n")
        added = whole[0] + whole[1]
        text = added.decode("utf-8", "replace")
        self._lines = [*self._lines, *parse_metrics(text, str(self._path), first=len(self._lines) + 1)]
        self._mark = Mark.at(self._path, start + len(added))

    def _begin(self) -> None:
        if self._lines:
            self.epoch += 1
        self._mark, self._lines = None, []


def _described(name: str) -> dict[str, str]:
    try:
        metric = metric_of(name)
    except UnknownIdError:
        return {"name": name, "metric": name, "unit": "", "meaning": ""}
    return {"name": name, "metric": metric.name, "unit": metric.unit, "meaning": metric.meaning}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
