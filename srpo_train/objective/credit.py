"""The facts advantages are estimated from, and the advantages themselves, as columns over events and member rows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, ShapeError
from srpo_train.objective.segments import segment_mean


@dataclass(frozen=True, kw_only=True)
class CreditTable:
    """The facts estimators may read: columns over E events and M member rows.

    Identifiers are integers chosen by the caller; only their equality matters. Optional columns are needed by the
    estimators that say so.

    Example:
        Two rollouts of question 7, each one event of two members:
        ``CreditTable(return_E=tensor([1., 0.]), group_E=tensor([7, 7]), event_of_row_M=tensor([0, 0, 1, 1]))``
    """

    return_E: Tensor
    """[E] downstream team return R_e."""
    group_E: Tensor
    """[E] the prompt, that is the rollout group of the episode."""
    event_of_row_M: Tensor
    """[M] the event of each member row, in [0, E)."""
    event_type_E: Tensor | None = None
    """[E] kind of event, such as drafting or verification."""
    turn_E: Tensor | None = None
    """[E] turn of the episode the event belongs to."""
    episode_E: Tensor | None = None
    """[E] the episode (trajectory)."""
    step_E: Tensor | None = None
    """[E] position of the event in its episode; rises by time."""
    cardinality_E: Tensor | None = None
    """[E] announced number of members."""
    agent_M: Tensor | None = None
    """[M] the agent that played the member."""
    return_M: Tensor | None = None
    """[M] a row's own score, where it differs from its event's return (a penalty for this row only)."""
    state_E: Tensor | None = None
    """[E] the replayed pre-action state; equal numbers in one rollout group mean the same task and history."""
    value_E: Tensor | None = None
    """[E] a critic's value of the pre-action state."""

    def __post_init__(self) -> None:
        """Check the length of every column."""
        sizes = {"E": self.return_E.numel(), "M": self.event_of_row_M.numel()}
        for name, column in self._columns().items():
            if list(column.shape) != [sizes[name[-1]]]:
                raise ShapeError(f"credit column {name}: expected [{sizes[name[-1]]}], got {list(column.shape)}")

    def row_return(self) -> Tensor:
        """Return the [M] scores of the rows: their own where given, else their event's."""
        return self.return_E[self.event_of_row_M] if self.return_M is None else self.return_M

    def key(self, names: tuple[str, ...], level: Literal["event", "row"]) -> Tensor:
        """Number the combinations of the named columns, without suffix: [E] or [M] int64 group numbers.

        Raises:
            ConfigError: as `column` does.
        """
        columns = [self.column(name, level) for name in names]
        if not columns:
            return torch.zeros_like(self.event_of_row_M if level == "row" else self.group_E)
        number_N: Tensor = torch.unique(torch.stack(columns), dim=1, return_inverse=True)[1]
        return number_N

    def column(self, name: str, level: Literal["event", "row"]) -> Tensor:
        """Return the column of a name without suffix, on events or on rows.

        Raises:
            ConfigError: it is no column, is absent, or exists per row while events are asked for.
        """
        columns = self._columns()
        if level == "row" and f"{name}_M" in columns:
            return columns[f"{name}_M"]
        if f"{name}_E" in columns:
            column_E = columns[f"{name}_E"]
            return column_E if level == "event" else column_E[self.event_of_row_M]
        raise ConfigError(f"group key {name!r}: not a column of this credit table for {level}s; fill it or regroup")

    def episodes(self) -> list[Tensor]:
        """Return the events of each episode in order of time, as int64 indices."""
        episode_E, step_E = self.key(("episode",), "event"), self.column("step", "event")
        order = torch.argsort(step_E, stable=True)
        order = order[torch.argsort(episode_E[order], stable=True)]
        return list(torch.split(order, torch.bincount(episode_E).tolist())) if order.numel() else []

    def rewards(self, events: Tensor) -> Tensor:
        """Return what the team received from each event of an episode to its next one here: [T] float64.

        R_e is the sum of all later rewards, so this is the difference of two returns. What was received at an event
        that is not in the table thus counts for the one before it, and is not lost.

        Args:
            events: [T] events of one episode in order of time.
        """
        return_T = self.return_E[events].double()
        return return_T - torch.cat([return_T[1:], return_T.new_zeros(1)])

    def select(self, events: Tensor) -> CreditTable:
        """Keep these events (int64 indices, in this order) with their rows, and renumber."""
        position_E = torch.full_like(self.group_E, -1)
        position_E[events] = torch.arange(events.numel())
        rows = (position_E[self.event_of_row_M] >= 0).nonzero().squeeze(1)
        kept = {name: column[events if name[-1] == "E" else rows] for name, column in self._columns().items()}
        kept["event_of_row_M"] = position_E[self.event_of_row_M[rows]]
        return replace(self, **kept)

    def _columns(self) -> dict[str, Tensor]:
        present = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: column for name, column in present.items() if column is not None}


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """Advantages with the level they were computed at; the other level is a view.

    Example:
        >>> Advantage(value=torch.tensor([2.0]), level="event").on_rows(torch.tensor([0, 0])).tolist()
        [2.0, 2.0]
    """

    value: Tensor
    """[E] or [M] float32."""
    level: Literal["event", "row"]
    """Whether a value belongs to an event or to a member row."""
    value_target_E: Tensor | None = None
    """[E] float32, what a critic should have said of each event's state; only from estimators that read one."""

    def on_rows(self, event_of_row_M: Tensor) -> Tensor:
        """Return [M]: every member carries its event's scalar."""
        return self.value if self.level == "row" else self.value[event_of_row_M]

    def on_events(self, event_of_row_M: Tensor, num_events: int) -> Tensor:
        """Return [E]: the mean over an event's members where they differ."""
        return self.value if self.level == "event" else segment_mean(self.value, event_of_row_M, num_events)
