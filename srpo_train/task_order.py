"""Which task comes when: every epoch a new permutation, known from seed and position alone.

Nothing is carried from step to step, so a resumed run sees the same tasks as one that was never interrupted, at an
epoch boundary too.
"""

from __future__ import annotations

import functools

import numpy as np

from srpo_train.collect import EpisodeJob, derive_seed


class TaskOrder:
    """Endless passes over a task family.

    Args:
        num_tasks: Tasks per epoch.
        seed: Another seed gives other permutations.
    """

    def __init__(self, num_tasks: int, seed: int) -> None:
        self.num_tasks = num_tasks
        self._seed = seed
        self._permutation = functools.lru_cache(maxsize=2)(self._draw)

    def task_at(self, position: int) -> int:
        """Return the task at a position counted from the beginning of training."""
        epoch, place = divmod(position, self.num_tasks)
        return int(self._permutation(epoch)[place])

    def _draw(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self.num_tasks)


def step_jobs(order: TaskOrder, *, step: int, prompts_per_step: int, group_size: int, seed: int) -> list[EpisodeJob]:
    """Return the episodes of one training step: `group_size` rollouts of each of `prompts_per_step` tasks.

    Steps count from 1, as everywhere a person sees them. A group shares task and environment seed; its members differ
    by their episode id, which decides their sampling.
    """
    jobs = []
    for prompt in range(prompts_per_step):
        group_id = f"step{step}/p{prompt}"
        task_index = order.task_at((step - 1) * prompts_per_step + prompt)
        env_seed = derive_seed(seed, "env", group_id)
        jobs += [
            EpisodeJob(episode_id=f"{group_id}/g{member}", group_id=group_id, task_index=task_index, env_seed=env_seed)
            for member in range(group_size)
        ]
    return jobs
