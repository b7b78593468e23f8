"""The source of rollouts that a recipe asks for."""

from __future__ import annotations

from pathlib import Path

from srpo_train.collect import EpisodeJob
from srpo_train.config import Recipe
from srpo_train.distributed.ranks import Ranks
from srpo_train.overlap.batches import BatchesAhead
from srpo_train.overlap.groups import GroupsAhead
from srpo_train.overlap.relayed import Relayed
from srpo_train.overlap.source import InTurn, RolloutSource
from srpo_train.samplers import Samplers
from srpo_train.task_order import TaskOrder, group_jobs, step_jobs


def make_source(
    recipe: Recipe, samplers: Samplers, order: TaskOrder, ranks: Ranks, *, step: int, stored: Path | None
) -> RolloutSource:
    """Return what gives the trainer its episodes.

    Args:
        recipe: The run.
        samplers: Its engines and collectors.
        order: Which task comes when.
        ranks: The run's processes, which all make the same call.
        step: Training steps taken so far.
        stored: What a checkpoint after this step has of samples for later ones; None without a checkpoint.

    Raises:
        CheckpointError: what is stored cannot be read.
    """
    rollout = recipe.rollout
    sizes = {
        "prompts_per_step": rollout.prompts_per_step,
        "group_size": rollout.group_size + rollout.oversample,
        "seed": recipe.seed,
    }

    def jobs_of_step(number: int) -> list[EpisodeJob]:
        return step_jobs(order, step=number, **sizes)

    if not rollout.max_lag:
        return InTurn(samplers.collect, samplers.publish, jobs_of_step, step=step)
    stored = stored if stored and stored.is_dir() else None
    num_steps, max_lag = recipe.train.num_steps, rollout.max_lag

    def sample_ahead() -> RolloutSource:
        if rollout.mode == "rounds":
            return BatchesAhead(
                samplers.collect,
                samplers.snapshot,
                samplers.push,
                jobs_of_step,
                step=step,
                num_steps=num_steps,
                max_lag=max_lag,
                stored=stored,
            )
        return GroupsAhead(
            samplers.open_stream,
            samplers.snapshot,
            samplers.push,
            lambda position: group_jobs(order, position=position, **sizes),
            step=step,
            num_steps=num_steps,
            per_step=rollout.prompts_per_step,
            num_parts=recipe.optim.num_minibatches if rollout.early_start else 1,
            max_lag=max_lag,
            lost_step_retries=rollout.lost_step_retries,
            stored=stored,
        )

    return Relayed(sample_ahead, samplers.snapshot, ranks) if ranks.size > 1 else sample_ahead()
