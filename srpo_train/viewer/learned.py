"""A training step as its learner had it, computed anew from what the run left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from srpo_envs.errors import CheckpointError, PolicyLoadError
from srpo_envs.records import Episode
from srpo_train.config import Recipe
from srpo_train.experience import Experience
from srpo_train.viewer.credit import experience_of
from srpo_train.viewer.critic import values_before
from srpo_train.viewer.runs import RunPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedStep:
    """What is known of a training step.

    Example:
        ``LearnedStep(experience=experience, remark="no advantages: ...")``
    """

    experience: Experience
    """Its events, with their advantages where these are known."""
    remark: str = ""
    """What is not known and why."""


def learned_step(place: RunPlace, step: int, episodes: Sequence[Episode]) -> LearnedStep:
    """Return a training step of a run.

    Args:
        place: The run.
        step: Which, from 1.
        episodes: All it was trained on.

    Raises:
        ConfigError: the recipe is damaged, or the episodes were not sampled by a policy with tokens.
    """
    recipe = place.recipe
    if not recipe.build_objective().advantage.needs_critic:
        return LearnedStep(experience=experience_of(episodes, recipe))
    try:
        return LearnedStep(experience=experience_of(episodes, recipe, values_before(place, step)))
    except (CheckpointError, PolicyLoadError) as error:
        remark = (
            f"no advantages: they compare with the critic as it was before step {step}, which the checkpoint of step "
            f"{step - 1} would tell (train.checkpoint_every, train.keep_last); {error}"
        )
        return LearnedStep(experience=_without_advantages(episodes, recipe), remark=remark)


def _without_advantages(episodes: Sequence[Episode], recipe: Recipe) -> Experience:
    """The events alone; their advantages are NaN."""
    found = experience_of(episodes, recipe, lambda batch: torch.zeros(batch.num_events, dtype=torch.float64))
    unknown_E = torch.full((found.batch.num_events,), torch.nan)
    unknown_M = torch.full((len(found.batch.rows),), torch.nan)
    return replace(found, batch=replace(found.batch, advantage_E=unknown_E, advantage_M=unknown_M))
