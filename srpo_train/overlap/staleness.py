"""The rules that keep samples fresh enough: how many groups may be begun, and which of them make a batch.

A group's *lag* is the number of updates between the weights that sampled its oldest member and those it is trained on.
No group may have a lag above `max_lag`, and none is thrown away for it: so few are begun at a time that all can be
trained before they are too old, and a batch that would leave one behind to grow too old waits for it. A group that
takes long is therefore waited for, not dropped, so that long episodes are trained on like short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A rollout group that has been begun and not been trained on.

    Example:
        ``Begun(position=17, version=3, is_complete=False)``
    """

    position: int
    """Its place in the order of tasks."""
    version: int
    """Updates behind the weights that the engines had when it was begun; its members' are these or later ones."""
    is_complete: bool
    """Whether all its episodes have ended."""


def num_admitted(num_untrained: int, *, per_step: int, max_lag: int, lead: int) -> int:
    """Return how many more groups may be begun.

    In order of their beginning, the c-th group that is not trained yet is trained ``ceil(c / per_step) - 1`` updates
    from now. Begun with weights that are `lead` updates old already, it must not be more than ``max_lag - lead``.

    Args:
        num_untrained: Groups that have been begun and whose update is not over.
        per_step: Groups of one training step.
        max_lag: Largest lag.
        lead: Updates by which the trainer is ahead of the engines.
    """
    return max(0, (max_lag + 1 - lead) * per_step - num_untrained)


def choose(
    begun: Sequence[Begun], *, num_wanted: int, num_left: int, per_step: int, version: int, max_lag: int
) -> list[Begun] | None:
    """Return the groups to train on next, the oldest complete ones; None while it is better to wait.

    Args:
        begun: Every group that is not trained yet.
        num_wanted: Groups to choose.
        num_left: Further groups that the same training step will take after these.
        per_step: Groups of one training step.
        version: Updates behind the trainer's weights.
        max_lag: Largest lag.
    """
    complete = sorted(
        (group for group in begun if group.is_complete), key=lambda group: (group.version, group.position)
    )
    if len(complete) < num_wanted:
        return None
    chosen = sorted(complete, key=lambda group: (group.version, group.position))[:num_wanted]
    taken = {group.position for group in chosen}
    lags = [version - group.version for group in begun if group.position not in taken]
    for num_steps in range(max_lag + 1):  # what must be trained within so many further steps has to fit into them
        if sum(lag >= max_lag - num_steps for lag in lags) > num_steps * per_step + num_left:
            return None
    return chosen
