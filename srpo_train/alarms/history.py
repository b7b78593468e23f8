"""The metrics of a run so far, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from srpo_train.metrics import Values

_START = 5
"""Steps that count as the start of a run: one alone is noisy."""


class History:
    """Values of each metric in order, and the newest step.

    Args:
        lines: Steps that have been.
    """

    def __init__(self, lines: Iterable[Values] = ()) -> None:
        self.latest: Values = {}
        self._values: dict[str, list[float]] = defaultdict(list)
        self._best: tuple[int, float] | None = None
        for line in lines:
            self.append(line)

    def append(self, line: Values) -> None:
        """Add a step."""
        self.latest = line
        for name, value in line.items():
            self._values[name].append(value)
        score = line.get("eval/avg_at_k")
        if score is not None and (self._best is None or score > self._best[1]):
            self._best = (int(line["step"]), score)

    def values(self, name: str) -> list[float]:
        """Return every value of a metric; a step that did not measure it has none."""
        return self._values.get(name, [])

    def roles(self, prefix: str) -> list[str]:
        """Return the roles a metric was measured for, ``prefix`` ending in a slash."""
        return sorted(name.removeprefix(prefix) for name in self._values if name.startswith(prefix))

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation so far, the first of equal ones; None before any."""
        return self._best[0] if self._best else None

    def start(self, name: str) -> float:
        """Return a metric's mean at the start of the run."""
        return _mean(self.values(name)[:_START])

    def recent(self, name: str, count: int) -> float | None:
        """Return the mean of the newest values; None while there are not as many after the start of the run."""
        values = self.values(name)
        return _mean(values[-count:]) if len(values) >= _START + count else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
