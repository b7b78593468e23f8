"""What the learner made of a step's events: computed anew from the log by the code that training uses.

The log holds returns, not advantages. An advantage compares the episodes of a step, and the log of a step holds exactly
those that the learner was given, so `build_experience` with the run's recipe gives the advantages of training. A run
with a critic compares with its values besides, see `srpo_train.viewer.critic`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode
from srpo_train.batching import EventBatch
from srpo_train.config import Recipe
from srpo_train.experience import Experience, build_experience
from srpo_train.viewer.timeline import EventCredit


def experience_of(
    episodes: Sequence[Episode], recipe: Recipe, values: Callable[[EventBatch], Tensor] | None = None
) -> Experience:
    """Return the events of a training step as its learner had them.

    Args:
        episodes: Every episode of the step.
        recipe: Of the run.
        values: The critic's before the step, where the objective has one.

    Raises:
        ConfigError: the advantages need a critic and there is none, or the episodes were not sampled by a policy with
            tokens.
    """
    objective = recipe.build_objective()
    if objective.advantage.needs_critic and values is None:
        raise ConfigError(
            f"objective {recipe.objective.preset!r}: its advantages compare with a critic's values, which the log does "
            "not hold"
        )
    return build_experience(episodes, objective, recipe.optim.max_row_tokens, values)


def credits_of(experience: Experience, episode: Episode, recipe: Recipe) -> Mapping[str, EventCredit]:
    """Return the credit of every event of an episode, by event id."""
    batch = experience.batch
    assert batch.advantage_E is not None and batch.advantage_M is not None and batch.event_ids is not None
    compares_rows = recipe.build_objective().unit != "set"
    rows: dict[int, list[float | None]] = {}
    if compares_rows:
        for row, advantage in zip(batch.rows, batch.advantage_M.tolist(), strict=True):
            rows.setdefault(row.event_index, []).append(_finite(advantage))
    advantage_of = {
        event_id: EventCredit(advantage=_finite(value), member_advantages=tuple(rows.get(index, ())))
        for index, (event_id, value) in enumerate(zip(batch.event_ids, batch.advantage_E.tolist(), strict=True))
    }
    return {
        event.event_id: advantage_of.get(event.event_id) or EventCredit(left_out=_reason(experience, event.is_complete))
        for event in episode.events
    }


def _reason(experience: Experience, is_complete: bool) -> str:
    """Why an event is not in the batch; where two reasons are possible, both."""
    if not is_complete:
        return "incomplete"
    found = Counter(experience.dropped)
    return " or ".join(reason for reason in ("overlong", "uniform") if found[reason]) or "incomplete"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
