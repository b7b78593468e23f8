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
    first = (step - 1) * prompts_per_step
    positions = range(first, first + prompts_per_step)
    sizes = {"prompts_per_step": prompts_per_step, "group_size": group_size, "seed": seed}
    return [job for position in positions for job in group_jobs(order, position=position, **sizes)]


def group_jobs(
    order: TaskOrder, *, position: int, prompts_per_step: int, group_size: int, seed: int
) -> list[EpisodeJob]:
    """Return the episodes of the group at a position counted from the beginning of training.

    It is called after the step that it belongs to where no group is skipped or begun ahead.
    """
    step, prompt = divmod(position, prompts_per_step)
    group_id = f"step{step + 1}/p{prompt}"
    task_index, env_seed = order.task_at(position), derive_seed(seed, "env", group_id)
    return [
        EpisodeJob(episode_id=f"{group_id}/g{member}", group_id=group_id, task_index=task_index, env_seed=env_seed)
        for member in range(group_size)
    ]
