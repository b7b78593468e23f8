"""Running counts of one benchmark under one seed: all that is kept of a sample once it is on disk."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence

from srpo_envs.records import Episode
from srpo_train.costs import Cost, episode_cost, mean_costs, token_utility
from srpo_train.evaluation.results import SeedResult, TaskResult
from srpo_train.evaluation.scores import avg_at_k, share_solved
from srpo_train.summary import is_correct

_EVENT = re.compile(r"^event '[^']*': ")  # tells one sample from another, and not why they failed
_MOST_REASONS = 20


class Tally:
    """Counts samples as they come; an evaluation of many tasks never holds their episodes."""

    def __init__(self) -> None:
        self.num_correct = 0
        """Correct samples."""
        self.num_samples = 0
        """Samples that count."""
        self.num_failed = 0
        """Samples lost to their surroundings."""
        self.num_unanswered = 0
        """Samples that count as wrong without an episode."""
        self._reasons: Counter[str] = Counter()
        self._tasks: dict[str, list[int]] = {}  # task id to correct samples, samples, tokens
        self._costs: dict[str, list[Cost]] = defaultdict(list)
        self._means = _Means()

    @property
    def share_correct(self) -> float | None:
        """Share of correct samples so far."""
        return self.num_correct / self.num_samples if self.num_samples else None

    def add(self, episode: Episode) -> None:
        """Count a finished sample."""
        self._count(episode.task_id, is_correct(episode), episode.num_tokens)
        self._costs[episode.task_id].append(episode_cost(episode))
        self._means.add(episode)

    def add_wrong(self, task_id: str, reason: str) -> None:
        """Count a sample in which no answer could be given."""
        self._count(task_id, False, 0)
        self.num_unanswered += 1
        self._reasons[_EVENT.sub("", reason)] += 1

    def add_lost(self, reason: str) -> None:
        """Count a sample that says nothing."""
        self.num_failed += 1
        self._reasons[_EVENT.sub("", reason)] += 1

    def result(self, task_ids: Sequence[str]) -> SeedResult:
        """Return what was counted.

        Args:
            task_ids: The tasks of the benchmark, in order.
        """
        per_task = [_task_result(task_id, self._tasks[task_id]) for task_id in task_ids if task_id in self._tasks]
        return SeedResult(
            avg_at_k=avg_at_k(per_task),
            pass_at_k=share_solved(per_task),
            num_samples=self.num_samples,
            num_failed=self.num_failed,
            num_unanswered=self.num_unanswered,
            costs=self._mean_costs(per_task),
            reasons=dict(self._reasons.most_common(_MOST_REASONS)),
            per_task=tuple(per_task),
            metrics=self._means.values(),
        )

    def _mean_costs(self, per_task: Sequence[TaskResult]) -> dict[str, float]:
        shares = {task.task_id: task.num_correct / task.num_samples for task in per_task}
        utility = token_utility(shares, self._costs)
        costs = mean_costs([cost for samples in self._costs.values() for cost in samples])
        return costs if utility is None else {"utility": utility, **costs}

    def _count(self, task_id: str, is_right: bool, num_tokens: int) -> None:
        self.num_correct += is_right
        self.num_samples += 1
        counts = self._tasks.setdefault(task_id, [0, 0, 0])
        for place, amount in enumerate((int(is_right), 1, num_tokens)):
            counts[place] += amount


class _Means:
    """Means of figures that come one by one, the same in whatever order."""

    def __init__(self) -> None:
        self._values: dict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, episode: Episode) -> None:
        """Take in what an episode says; names are those of `srpo_train.metrics.TABLE` without their prefix."""
        self._take("reward_mean", episode.reward)
        for event in episode.events:
            for member in event.members:
                self._take(f"valid_rate/{member.role}", member.is_valid)
                self._take(f"response_length/{member.role}", sum(member.token_mask))
        for name, value in episode.info.get("metrics", {}).items():
            self._take(f"env/{name}", value)

    def values(self) -> dict[str, float]:
        """Return the means by name."""
        return {name: math.fsum(values) / len(values) for name, values in sorted(self._values.items())}

    def _take(self, name: str, value: float) -> None:
        self._values[name].append(value)


def _task_result(task_id: str, counts: Sequence[int]) -> TaskResult:
    num_correct, num_samples, num_tokens = counts
    return TaskResult(task_id=task_id, num_correct=num_correct, num_samples=num_samples, num_tokens=num_tokens)
