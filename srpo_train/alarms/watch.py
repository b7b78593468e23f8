"""Which troubles are new: an alarm is raised when its trouble begins, and again after it has gone away."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from srpo_train.alarms.collapses import collapses
from srpo_train.alarms.failures import quiet_failures
from srpo_train.alarms.history import History
from srpo_train.alarms.settings import Action, AlarmsConfig
from srpo_train.alarms.trouble import Trouble
from srpo_train.metrics import Values


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """A trouble that has just begun.

    Example:
        ``Alarm(name="validation_cliff", subject="", message="held-out Avg@k fell ...", action="rollback")``
    """

    name: str
    """The rule."""
    subject: str
    """The role it is about; empty for the whole run."""
    message: str
    """What is seen and what to do."""
    action: Action
    """What the recipe wants done."""


class Alarms:
    """The rules at work on one run.

    Args:
        config: Thresholds and actions.
        lines: Steps that have been; their troubles count as known.

    Example:
        >>> alarms = Alarms(AlarmsConfig())
        >>> alarms.check({"rollout/reward_std": 0.0, "rollout/reward_mean": 0.0})[0].name
        'constant_reward'
    """

    def __init__(self, config: AlarmsConfig, lines: Iterable[Values] = ()) -> None:
        self._config = config
        self._history = History(lines)
        self._ongoing: set[tuple[str, str]] = {(found.alarm, found.subject) for found in self._troubles()}

    def check(self, values: Values) -> list[Alarm]:
        """Add a step, its number among the values, and return the alarms that are new with it."""
        self._history.append(values)
        found = {(trouble.alarm, trouble.subject): trouble for trouble in self._troubles()}
        new = [trouble for key, trouble in found.items() if key not in self._ongoing]
        self._ongoing = set(found)
        return [
            Alarm(
                name=trouble.alarm,
                subject=trouble.subject,
                message=trouble.message,
                action=self._config.action_of(trouble.alarm),
            )
            for trouble in new
        ]

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation so far; None before any."""
        return self._history.best_step

    def metrics(self) -> dict[str, float]:
        """Return ``alarm/{alarm}`` of every trouble that lasts: how many roles it concerns, 1 for the whole run."""
        names = sorted(name for name, _ in self._ongoing)
        return {f"alarm/{name}": float(len(list(group))) for name, group in itertools.groupby(names)}

    def _troubles(self) -> Iterator[Trouble]:
        for trouble in (*quiet_failures(self._history.latest), *collapses(self._history, self._config)):
            if self._config.action_of(trouble.alarm) != "off":
                yield trouble
