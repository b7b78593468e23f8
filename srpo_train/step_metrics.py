"""What one training step reports of its collection and its clocks, by the names of `srpo_train.metrics.TABLE`."""

from __future__ import annotations

import torch

from srpo_train.collect import Rollout
from srpo_train.experience import Experience
from srpo_train.metrics import Values


def collection_metrics(rollout: Rollout, experience: Experience) -> dict[str, float]:
    """Count what was dropped on the way from jobs to trained events."""
    return {
        "rollout/num_failed_episodes": float(len(rollout.failed)),
        "rollout/num_expired_episodes": float(sum(failed.is_expired for failed in rollout.failed)),
        "rollout/num_surplus_episodes": float(rollout.num_surplus),
        "rollout/num_stragglers": float(rollout.num_stragglers),
        "rollout/num_incomplete_events": float(experience.dropped["incomplete"]),
        "train/num_overlong_events": float(experience.dropped["overlong"]),
        "train/num_uniform_events": float(experience.dropped["uniform"]),
    }


def clock_metrics(rollout: Rollout, update: Values, *, step_s: float, update_s: float) -> dict[str, float]:
    """Say how long a step and its parts took, and how much was done in that time."""
    num_tokens = sum(episode.num_tokens for episode in rollout.episodes)
    return {
        "time/generate_s": rollout.generate_s,
        "time/env_s": rollout.env_s,
        "time/update_s": update_s,
        "time/step_s": step_s,
        "perf/tokens_per_s": num_tokens / max(rollout.generate_s, 1e-9),
        "perf/train_tokens_per_s": update.get("train/num_tokens", 0.0) / max(update_s, 1e-9),
        "perf/episodes_per_s": len(rollout.episodes) / step_s,
        **({"perf/peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if torch.cuda.is_available() else {}),
    }
