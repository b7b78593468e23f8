"""Which event each row of another trainer's batch belongs to, written in whatever id that trainer gives a row.

Trainers reorder, split and pad their rows. An id goes with its row, so the event does: `EventUid` is the id as a text,
`Events` what the ids of a batch say, and `Events.coefficients` the numbers that log-probabilities are multiplied by.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, RecordError, ShapeError
from srpo_envs.records import Event
from srpo_train.objective import CreditTable, LossTensors, Objective, diagnose
from srpo_train.set_gradient import loss_coefficients

PADDING = "pad"
"""What the id of a row begins with that only fills a batch up; verl's own padding rows are named so."""


class EventUid(NamedTuple):
    """The event a row belongs to, and as text the id of that row.

    Example:
        >>> str(EventUid("q7", "solver", "q7/g0/e0", 3))
        '["q7", "solver", "q7/g0/e0", 3]'
    """

    group_id: str
    """The prompt: rollouts of one share it."""
    event_type: str
    """Kind of decision; comparison groups use it."""
    event_id: str
    """The event."""
    cardinality: int
    """K, the rows it has."""

    def __str__(self) -> str:
        """Return the text, JSON, so that any characters may be in the ids."""
        return json.dumps(self)

    @classmethod
    def parse(cls, text: str) -> EventUid:
        """Read what `__str__` wrote.

        Raises:
            RecordError: it is something else.
        """
        try:
            group_id, event_type, event_id, cardinality = json.loads(text)
            return cls(group_id, event_type, event_id, int(cardinality))
        except (TypeError, ValueError):
            raise RecordError(
                f"row id {text!r}: expected the JSON list [group_id, event_type, event_id, cardinality] of EventUid; "
                "SRPO needs to know the event of every row"
            ) from None


@dataclass(frozen=True, kw_only=True)
class Events:
    """The events of a batch, read from the ids of its rows; padding rows are left out."""

    uids: Sequence[EventUid]
    """One of each event."""
    row_M: Tensor
    """[M] which rows of the batch are member rows."""
    event_of_row_M: Tensor
    """[M] the event of each of those."""

    @classmethod
    def of(cls, uids: Iterable[str]) -> Events:
        """Read the ids of all rows of a batch."""
        found = {row: EventUid.parse(text) for row, text in enumerate(uids) if not str(text).startswith(PADDING)}
        number = {uid: event for event, uid in enumerate(dict.fromkeys(found.values()))}
        event_of_row_M = torch.tensor([number[uid] for uid in found.values()])
        return cls(uids=list(number), row_M=torch.tensor(list(found)), event_of_row_M=event_of_row_M)

    def from_rows(self, value_N: Tensor, name: str) -> Tensor:
        """Return the [E] value that all rows of an event share.

        Raises:
            ShapeError: they do not.
        """
        value_M = value_N.cpu()[self.row_M]
        value_E = torch.zeros(len(self.uids), dtype=value_M.dtype)
        value_E[self.event_of_row_M] = value_M
        wrong = (value_E[self.event_of_row_M] != value_M).nonzero()
        if wrong.numel():
            uid = self.uids[int(self.event_of_row_M[wrong[0]])]
            raise ShapeError(f"event {uid.event_id!r}: expected one {name} for all its rows, got several; give it R_e")
        return value_E

    def credit(self, return_E: Tensor) -> CreditTable:
        """Return what advantages are estimated from."""
        return CreditTable(
            return_E=return_E,
            group_E=_codes([uid.group_id for uid in self.uids]),
            event_type_E=_codes([uid.event_type for uid in self.uids]),
            event_of_row_M=self.event_of_row_M,
            cardinality_E=self.cardinality_E,
        )

    @property
    def cardinality_E(self) -> Tensor:
        """[E] int64."""
        return torch.tensor([uid.cardinality for uid in self.uids])

    def coefficients(
        self, objective: Objective, advantage_E: Tensor, mask_NT: Tensor, old_NT: Tensor, current_NT: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Return what the log-probability of each token is multiplied by, and what `diagnose` says.

        Args:
            objective: The choices.
            advantage_E: [E] advantages of the events.
            mask_NT: [N, T] true on sampled tokens of all rows of the batch, padding rows included.
            old_NT: [N, T] log-probabilities under the policy that sampled.
            current_NT: [N, T] log-probabilities under the policy being updated.

        Returns:
            [N, T] float32, dJ / d log q, 0 outside the mask; it holds the division by the number of events.

        Raises:
            IncompleteEventError: an event lacks a row or has one too many.
        """
        tensors = LossTensors(
            current_MT=current_NT.detach().cpu().double()[self.row_M],
            old_MT=old_NT.detach().cpu().double()[self.row_M],
            token_mask_MT=mask_NT.cpu().bool()[self.row_M],
            event_of_row_M=self.event_of_row_M,
            cardinality_E=self.cardinality_E,
            advantage_E=advantage_E.double(),
            event_ids=[uid.event_id for uid in self.uids],
        )
        value, found = loss_coefficients(objective, tensors)
        coefficient_NT = torch.zeros(mask_NT.shape, dtype=torch.float32)
        coefficient_NT[self.row_M] = found.logprobs_MT.float()
        return coefficient_NT.to(mask_NT.device), diagnose(objective, tensors) | {"objective": value}


def require_whole_vocabulary(events: Iterable[Event]) -> None:
    """Refuse rows that a trainer without masks over the vocabulary would score wrongly.

    Under top-k and top-p a token is drawn from what is left of the vocabulary, and its recorded log-probability is the
    one within that. Scored among all tokens every ratio to it is too small, from the first update on.

    Raises:
        ConfigError: a member was sampled so.
    """
    for event in events:
        for member in event.members:
            if member.kept_token_ids:
                raise ConfigError(
                    f"event {event.event_id!r}, member {member.member_index} ({member.agent}): sampled under top-k or "
                    "top-p, while this trainer scores its tokens among all, so that ratios would be wrong; sample with "
                    "top_p = 1 and top_k = 0, or train with `srpo train`, which scores among the tokens that were left"
                )


def _codes(names: Sequence[str]) -> Tensor:
    """Number distinct names in order of first appearance: [N] int64."""
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([number[name] for name in names])
