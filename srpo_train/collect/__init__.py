"""Collecting episodes: many set-valued environments driven at once, their prompts answered by one engine per policy.

Two ways share everything but their order of work (`srpo_train.collect.rounds`, `srpo_train.collect.asynchronous`):

- In **rounds**, all pending events are sampled as one batch per policy and the next batch waits until every environment
  has moved. Batches, and so the floating-point results, are the same in every run.
- **Asynchronously**, each episode advances as soon as its own event is complete, which keeps an engine busy while one
  long response or one slow tool holds up its own episode only.

Seeds belong to requests, so that both give the same episodes wherever a response depends on its request and seed alone.
Nothing here knows any particular environment.
"""

from srpo_train.collect.collector import Collector, Collects, Mode
from srpo_train.collect.jobs import EpisodeJob, FailedEpisode, OnEnd, Rollout, join_rollouts
from srpo_train.collect.requests import derive_seed

__all__ = [
    "Collector",
    "Collects",
    "EpisodeJob",
    "FailedEpisode",
    "Mode",
    "OnEnd",
    "Rollout",
    "derive_seed",
    "join_rollouts",
]
