"""What one training step reports of its collection and its clocks, by the names of `srpo_train.metrics.TABLE`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import torch

from srpo_envs.records import Episode
from srpo_train.collect import Rollout
from srpo_train.experience import Experience
from srpo_train.metrics import Values
from srpo_train.overlap.source import RolloutSource
from srpo_train.policies.policy import Policy


def collection_metrics(rollout: Rollout, experiences: Sequence[Experience]) -> dict[str, float]:
    """Count what was dropped on the way from jobs to trained events, which may come in parts."""

    def dropped(reason: str) -> float:
        return float(sum(experience.dropped[reason] for experience in experiences))

    return {
        "rollout/num_failed_episodes": float(len(rollout.failed)),
        "rollout/num_expired_episodes": float(sum(failed.is_expired for failed in rollout.failed)),
        "rollout/num_surplus_episodes": float(rollout.num_surplus),
        "rollout/num_recollected_episodes": float(rollout.num_recollected),
        "rollout/num_stragglers": float(rollout.num_stragglers),
        "rollout/num_step_retries": float(rollout.num_retries),
        "rollout/num_incomplete_events": dropped("incomplete"),
        "train/num_overlong_events": dropped("overlong"),
        "train/num_uniform_events": dropped("uniform"),
    }


def policy_lags(episodes: Iterable[Episode], trained: Sequence[Policy]) -> dict[str, float]:
    """Compare the weights that sampled with those that are about to be trained, over the responses of trained policies.

    Args:
        episodes: What is trained on.
        trained: The policies, before the update.
    """
    versions = {policy.policy_id: policy.version for policy in trained}
    lags = [
        versions[member.policy_id] - member.policy_version
        for episode in episodes
        for event in episode.events
        for member in event.members
        if member.policy_id in versions
    ]
    if not lags:
        return {}
    return {"train/policy_lag": sum(lags) / len(lags), "train/policy_lag_max": float(max(lags))}


class StepClock:
    """Takes the time of one training step, from its beginning.

    Args:
        source: Where its episodes come from.
    """

    def __init__(self, source: RolloutSource) -> None:
        self._source = source
        self._begun = time.monotonic()
        self._wait_s = 0.0
        self._collecting_begun = source.collecting_s
        self._collecting_in_wait_s = 0.0
        self._collecting_s = 0.0
        self.step_s = 0.0
        """Seconds from the beginning to `stop`."""

    @property
    def wait_s(self) -> float:
        """Seconds of waiting for rollouts so far."""
        return self._wait_s

    def waiting(self, rollouts: Iterator[Rollout]) -> Iterator[Rollout]:
        """Pass rollouts on, and count the time until each of them comes as waiting for them."""
        while True:
            begun, collecting = time.monotonic(), self._source.collecting_s
            rollout = next(rollouts, None)
            self._wait_s += time.monotonic() - begun
            self._collecting_in_wait_s += self._source.collecting_s - collecting
            if rollout is None:
                return
            yield rollout

    def stop(self) -> None:
        """End the step."""
        self.step_s = time.monotonic() - self._begun
        self._collecting_s = self._source.collecting_s - self._collecting_begun

    def metrics(self, rollout: Rollout, update: Values) -> dict[str, float]:
        """Say how long the step and its parts took, and how much was done in that time."""
        update_s = self.step_s - self._wait_s
        beside_s = self._collecting_s - self._collecting_in_wait_s
        num_tokens = sum(episode.num_tokens for episode in rollout.episodes)
        return {
            "time/generate_s": rollout.generate_s,
            "time/env_s": rollout.env_s,
            "time/wait_s": self._wait_s,
            "time/update_s": update_s,
            "time/step_s": self.step_s,
            # The clocks are read one after the other, so the difference may be a few microseconds too small or large.
            "perf/overlap_share": min(max(beside_s, 0.0), update_s) / self.step_s,
            **({"perf/tokens_per_s": num_tokens / rollout.generate_s} if rollout.generate_s else {}),
            "perf/train_tokens_per_s": update.get("train/num_tokens", 0.0) / max(update_s, 1e-9),
            "perf/episodes_per_s": len(rollout.episodes) / self.step_s,
            **_memory(),
        }


def _memory() -> dict[str, float]:
    return {"perf/peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if torch.cuda.is_available() else {}
