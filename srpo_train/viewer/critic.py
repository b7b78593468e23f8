"""Values of a run's critic as they were when a training step was credited.

They are not in the log. But a step compares its returns with the critic as the step before left it, and that one is in
the checkpoint of the step before, where there is one; before the first step it is the model that the recipe names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from srpo_train.batching import EventBatch
from srpo_train.policies.critic import Critic
from srpo_train.run_state import CRITIC_FOLDER
from srpo_train.value_learner import ValueLearner
from srpo_train.viewer.runs import RunPlace, checkpoint_store

Values = Callable[[EventBatch], Tensor]
"""A batch's [E] values, before anything was learned from it."""


def values_before(place: RunPlace, step: int) -> Values:
    """Return the values that a training step was credited with.

    Args:
        place: The run, whose objective has a critic.
        step: The training step, from 1.

    Raises:
        CheckpointError: the checkpoint of the step before is not kept, or damaged.
        PolicyLoadError: the critic cannot be loaded.
    """
    recipe = place.recipe
    settings = recipe.critic_settings
    source: str | Path = str(settings.model)
    if step > 1:
        source = checkpoint_store(place).at(step - 1).path / CRITIC_FOLDER
    critic = Critic.load(source, dtype=settings.dtype or "float32", device="cpu")
    num_steps = recipe.train.num_steps
    learner = ValueLearner(critic, recipe.critic_optim, value_clip=settings.value_clip, num_steps=num_steps)
    return learner.values
