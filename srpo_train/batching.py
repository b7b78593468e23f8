"""Whole events to padded tensors. An event enters training complete or not at all, exactly once, and is never split.

Letters: E events, M member rows, S padded prompt and response, T padded response.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, IncompleteEventError, ShapeError

_PASS_COST = 256
"""Padding tokens that cost about as much as one more forward pass of a small model."""
_PADDING_SHARE = 0.125
"""Share of padding that is accepted in a large pass, which keeps a GPU busier than several small ones."""


@dataclass(frozen=True, kw_only=True)
class MemberRow:
    """One member of one event, as token ids: what it read and what it sampled.

    Example:
        ``MemberRow(event_index=0, member_index=1, policy_id="solver", prompt_ids=[5, 6], token_ids=[7, 8, 2])``
    """

    event_index: int
    """The event of the batch this row belongs to, in [0, E)."""
    member_index: int
    """The seat in the event, in [0, K)."""
    policy_id: str
    """The parameters that answered."""
    prompt_ids: Sequence[int]
    """Everything before the first response token; at least one token, for the first log-probability needs a context."""
    token_ids: Sequence[int]
    """The response as sampled, never re-encoded. May be empty; may hold environment text, hidden by the mask."""
    old_logprobs: Sequence[float] | None = None
    """Log-probability of each response token under the behavior policy; None until they are computed."""
    kept_token_ids: Sequence[Sequence[int]] | None = None
    """For each response token those that top-k and top-p left to draw it from, itself among them: its log-probabilities
    of any policy are those within them. None where nothing was removed."""
    token_mask: Sequence[bool] | None = None
    """Whether the policy sampled each response token; None means all."""
    reference_logprobs: Sequence[float] | None = None
    """Log-probability of each response token under the reference policy, where a divergence penalty needs it."""
    engine_logprobs: Sequence[float] | None = None
    """Log-probability of each response token as the engine gave it, kept once ``old_logprobs`` are the trainer's."""
    role: str = ""
    """The job, for measurements by role; empty where nobody asks."""

    def __post_init__(self) -> None:
        """Check that the lists that run along the tokens have one length."""
        if not len(self.prompt_ids):
            raise ShapeError(f"{self.name}: expected a prompt of at least one token, got none; begin with a bos token")
        for name in ("old_logprobs", "kept_token_ids", "token_mask", "reference_logprobs", "engine_logprobs"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.token_ids):
                raise ShapeError(
                    f"{self.name}: expected one entry of {name} for each of {len(self.token_ids)} token ids, "
                    f"got {len(values)}; keep the sampled ids and what belongs to them together"
                )

    @property
    def name(self) -> str:
        """How errors call this row."""
        return f"row of event {self.event_index}, member_index {self.member_index}"

    @property
    def num_tokens(self) -> int:
        """Length of prompt and response, the tokens a forward pass sees."""
        return len(self.prompt_ids) + len(self.token_ids)


@dataclass(frozen=True, kw_only=True)
class EventBatch:
    """Events and their member rows; the advantages join once they are known.

    Example:
        ``EventBatch(rows=rows, cardinality_E=torch.tensor([3, 1]), advantage_E=torch.tensor([0.7, -0.7]))``
    """

    rows: Sequence[MemberRow]
    """M member rows in any order."""
    cardinality_E: Tensor
    """[E] int64, members each event was announced with."""
    advantage_E: Tensor | None = None
    """[E] one advantage per event."""
    advantage_M: Tensor | None = None
    """[M] advantages per row, for objectives whose unit is smaller than the set."""
    value_E: Tensor | None = None
    """[E] a critic's value of each event's pre-action state, where the advantages are a critic's."""
    value_target_E: Tensor | None = None
    """[E] what it should have said."""
    event_ids: Sequence[str] | None = None
    """E names for errors and reports."""

    def __post_init__(self) -> None:
        """Check lengths and event indices."""
        num_events, num_rows = self.num_events, len(self.rows)
        lengths = [
            ("advantage_E", self.advantage_E, num_events),
            ("value_E", self.value_E, num_events),
            ("value_target_E", self.value_target_E, num_events),
            ("event_ids", self.event_ids, num_events),
            ("advantage_M", self.advantage_M, num_rows),
        ]
        for name, values, expected in lengths:
            if values is not None and len(values) != expected:
                raise ShapeError(f"event batch: expected {expected} entries of {name}, got {len(values)}")
        for row in self.rows:
            if not 0 <= row.event_index < num_events:
                raise IncompleteEventError(f"{row.name}: expected an event_index in [0, {num_events})")

    @property
    def num_events(self) -> int:
        """E."""
        return int(self.cardinality_E.numel())

    @property
    def event_of_row_M(self) -> Tensor:
        """[M] int64, the event of each row."""
        return torch.tensor([row.event_index for row in self.rows], dtype=torch.int64)

    def select(self, events: Sequence[int]) -> EventBatch:
        """Keep these events, in this order, with all their rows in the order they have."""
        position = {event: index for index, event in enumerate(events)}
        kept = [index for index, row in enumerate(self.rows) if row.event_index in position]
        rows = [replace(self.rows[i], event_index=position[self.rows[i].event_index]) for i in kept]
        columns = {name: getattr(self, name) for name in ("advantage_E", "value_E", "value_target_E")}
        return EventBatch(
            rows=rows,
            cardinality_E=self.cardinality_E[list(events)],
            advantage_M=None if self.advantage_M is None else self.advantage_M[kept],
            **{name: None if column is None else column[list(events)] for name, column in columns.items()},
            event_ids=None if self.event_ids is None else [self.event_ids[event] for event in events],
        )


@dataclass(frozen=True, kw_only=True)
class DropReport:
    """What a filter took out of a batch, and why.

    Example:
        ``DropReport(kept=(0, 2), dropped={1: "missing_member"})``
    """

    kept: tuple[int, ...]
    """Events that stayed, by their index before the filter; use it to select their returns."""
    dropped: dict[int, str]
    """Event index before the filter -> reason."""

    @property
    def reasons(self) -> dict[str, int]:
        """Number of dropped events by reason."""
        return dict(Counter(self.dropped.values()))


def drop_incomplete(batch: EventBatch) -> tuple[EventBatch, DropReport]:
    """Drop events that do not have exactly the members 0..K-1; a lost member is never replaced.

    Returns:
        The batch of complete events, and the report; reasons are ``missing_member`` and ``extra_member``.
    """
    seats: dict[int, list[int]] = defaultdict(list)
    for row in batch.rows:
        seats[row.event_index].append(row.member_index)
    cardinalities = batch.cardinality_E.tolist()

    def reason(event: int) -> str | None:
        expected = set(range(cardinalities[event]))
        if not expected or not expected <= set(seats[event]):
            return "missing_member"
        return "extra_member" if len(seats[event]) > len(expected) else None

    return _filter_events(batch, reason)


def drop_overlong(batch: EventBatch, max_tokens: int) -> tuple[EventBatch, DropReport]:
    """Drop every event that has a row of more than ``max_tokens`` prompt and response tokens, with all its rows.

    Returns:
        The batch of the other events, and the report with reason ``overlong``.
    """
    overlong = {row.event_index for row in batch.rows if row.num_tokens > max_tokens}
    return _filter_events(batch, lambda event: "overlong" if event in overlong else None)


def _filter_events(batch: EventBatch, reason: Callable[[int], str | None]) -> tuple[EventBatch, DropReport]:
    reasons = {event: reason(event) for event in range(batch.num_events)}
    dropped = {event: why for event, why in reasons.items() if why is not None}
    kept = tuple(event for event in range(batch.num_events) if event not in dropped)
    report = DropReport(kept=kept, dropped=dropped)
    return (batch.select(kept) if dropped else batch), report


def event_minibatches(batch: EventBatch, num_minibatches: int, seed: int) -> Iterator[EventBatch]:
    """Deal the events, shuffled by ``seed``, into mini-batches whose sizes differ by at most one event.

    Every event appears exactly once with all its rows. With fewer events than mini-batches each event is its own.

    Args:
        batch: complete events.
        num_minibatches: optimiser steps per pass over the batch.
        seed: fixes the shuffle, apart from any global random state.

    Yields:
        Batches whose events are renumbered from 0.
    """
    if num_minibatches < 1:
        raise ConfigError(f"num_minibatches: expected at least 1, got {num_minibatches}")
    order = torch.randperm(batch.num_events, generator=torch.Generator().manual_seed(seed))
    for part in torch.tensor_split(order, min(num_minibatches, max(batch.num_events, 1))):
        if part.numel():
            yield batch.select(part.tolist())


def join_batches(batches: Sequence[EventBatch]) -> EventBatch:
    """Put whole batches one after the other; all have the same columns."""
    firsts = itertools.accumulate((batch.num_events for batch in batches), initial=0)
    rows = [
        replace(row, event_index=first + row.event_index)
        for first, batch in zip(firsts, batches, strict=False)
        for row in batch.rows
    ]
    names = ("advantage_E", "advantage_M", "value_E", "value_target_E")
    columns = {name: [getattr(batch, name) for batch in batches] for name in names}
    return EventBatch(
        rows=rows,
        cardinality_E=torch.cat([batch.cardinality_E for batch in batches]),
        **{name: None if any(part is None for part in parts) else torch.cat(parts) for name, parts in columns.items()},
        event_ids=[name for batch in batches for name in batch.event_ids or ()] or None,
    )


def micro_batches(rows: Sequence[MemberRow], max_tokens: int, packed: Collection[str] = ()) -> list[list[int]]:
    """Partition rows into forward passes of at most ``max_tokens`` tokens, padding included, longest rows first.

    Rows of different policies never share a pass, nor do padded rows of such different length that the padding would
    cost more than another pass. A single row longer than the budget makes a pass of its own: use `drop_overlong` to
    bound the length of rows. Longest first, so that what does not fit in memory fails at once.

    Args:
        rows: member rows.
        max_tokens: budget of rows times longest row, or of all rows' tokens where they are packed.
        packed: policies whose rows are packed rather than padded.

    Returns:
        Lists of row indices that together hold each row once.
    """
    if max_tokens < 1:
        raise ConfigError(f"micro-batch max_tokens: expected at least 1, got {max_tokens}")
    by_policy: dict[str, list[int]] = defaultdict(list)
    for index in sorted(range(len(rows)), key=lambda i: (-rows[i].num_tokens, i)):
        by_policy[rows[index].policy_id].append(index)
    return [
        part
        for policy_id, indices in by_policy.items()
        for part in (_fill_line if policy_id in packed else _fill)(indices, rows, max_tokens)
    ]


def _fill_line(indices: Sequence[int], rows: Sequence[MemberRow], max_tokens: int) -> list[list[int]]:
    """Cut a list sorted by falling length into lines that fit: each row goes into the fullest line with room for it.

    Best fit of falling lengths leaves little over: seldom more than one line beyond the least number there can be.
    """
    lines: list[list[int]] = []
    room: list[tuple[int, int]] = []  # tokens that are left of each line, ascending
    for index in indices:
        length = rows[index].num_tokens
        found = bisect.bisect_left(room, (length, 0))
        left, line = room.pop(found) if found < len(room) else (max_tokens, len(lines))
        if line == len(lines):
            lines.append([])
        lines[line].append(index)
        bisect.insort(room, (max(left - length, 0), line))
    return lines


def _fill(indices: Sequence[int], rows: Sequence[MemberRow], max_tokens: int) -> list[list[int]]:
    """Cut a list sorted by falling length into runs whose padded size fits and which are mostly not padding."""
    parts: list[list[int]] = []
    num_real = 0
    for index in indices:
        length = rows[index].num_tokens
        padded = rows[parts[-1][0]].num_tokens * (len(parts[-1]) + 1) if parts else 0
        padding = padded - num_real - length
        if parts and padded <= max_tokens and padding <= max(_PASS_COST, _PADDING_SHARE * padded):
            parts[-1].append(index)
            num_real += length
        else:
            parts.append([index])
            num_real = length
    return parts


@dataclass(frozen=True, kw_only=True)
class Responses:
    """What is scored of some rows: their responses, right-padded, whatever the rows look like to the model."""

    token_ids_MT: Tensor
    """[M, T] int64, the response."""
    token_mask_MT: Tensor
    """[M, T] bool, true on sampled tokens."""
    is_response_MT: Tensor
    """[M, T] bool, true on all response tokens, sampled or not; false on padding. Made from lengths alone, so a pad id
    that is also a real token does no harm."""
    prompt_length_M: Tensor
    """[M] int64, at least 1; response token t is predicted at position ``prompt_length - 1 + t``."""
    kept_NY: Tensor | None = None
    """[N, Y] int64, for each response token, row after row, those it was drawn from, filled up with -1, which alone
    stands for the whole vocabulary; None where all rows have that."""


@dataclass(frozen=True, kw_only=True)
class PaddedRows(Responses):
    """Member rows as right-padded tensors; positions are 0, 1, 2, ... along each row, every model's default.

    There is no attention mask: a causal model's real tokens do not look at padding on their right.

    Example:
        Prompt ``[5, 6]``, response ``[7]``, padded to 4 with id 0: ids ``[5, 6, 7, 0]``, prompt length 2.
    """

    input_ids_MS: Tensor
    """[M, S] int64, prompt then response then padding."""

    def places(self, row_N: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return where in [M, S] positions of rows are."""
        return row_N, position_N


@dataclass(frozen=True, kw_only=True)
class PackedRows(Responses):
    """Member rows end to end in one line of S tokens, without padding; positions begin at 0 in each row.

    Example:
        Rows ``[5, 6, 7]`` and ``[5, 8]``: ids ``[[5, 6, 7, 5, 8]]``, positions ``[[0, 1, 2, 0, 1]]``, ends ``[3, 5]``.
    """

    input_ids_1S: Tensor
    """[1, S] int64, each row's prompt and response."""
    position_ids_1S: Tensor
    """[1, S] int64, the place of each token in its row."""
    ends: Tensor
    """[M] int64 on the CPU, where each row ends."""

    def places(self, row_N: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return where in [1, S] positions of rows are."""
        start_M = torch.cat([self.ends.new_zeros(1), self.ends[:-1]]).to(row_N.device)
        return torch.zeros_like(row_N), start_M[row_N] + position_N


def pad_rows(rows: Sequence[MemberRow], pad_token_id: int = 0, device: torch.device | str = "cpu") -> PaddedRows:
    """Right-pad rows to the longest; T may be 0 when no row has a response.

    Args:
        rows: at least one member row.
        pad_token_id: any id of the vocabulary; no real token sees it and it is never trained on.
        device: where the tensors go.
    """
    responses = _responses(rows, device, pad_token_id)
    input_ids_MS = _pad([[*row.prompt_ids, *row.token_ids] for row in rows], pad_token_id, torch.int64)
    return PaddedRows(**responses, input_ids_MS=input_ids_MS.to(device))


def pack_rows(rows: Sequence[MemberRow], device: torch.device | str = "cpu") -> PackedRows:
    """Put rows end to end, in the order they have.

    Args:
        rows: at least one member row.
        device: where the tensors go, but for the rows' ends.
    """
    responses = _responses(rows, device, pad_token_id=0)
    tokens = list(itertools.chain.from_iterable(itertools.chain(row.prompt_ids, row.token_ids) for row in rows))
    positions = torch.cat([torch.arange(row.num_tokens) for row in rows])
    return PackedRows(
        **responses,
        input_ids_1S=torch.tensor([tokens], device=device),
        position_ids_1S=positions[None].to(device),
        ends=torch.tensor([row.num_tokens for row in rows]).cumsum(0),
    )


def _responses(rows: Sequence[MemberRow], device: torch.device | str, pad_token_id: int) -> dict[str, Any]:
    if not rows:
        raise ShapeError("rows to score: expected at least one row, got none")
    response_length_M = torch.tensor([len(row.token_ids) for row in rows])
    columns = {
        "token_ids_MT": _pad([row.token_ids for row in rows], pad_token_id, torch.int64),
        "token_mask_MT": pad_token_masks(rows),
        "is_response_MT": torch.arange(int(response_length_M.max())) < response_length_M[:, None],
        "prompt_length_M": torch.tensor([len(row.prompt_ids) for row in rows]),
        "kept_NY": _pad_kept(rows),
    }
    return {name: None if column is None else column.to(device) for name, column in columns.items()}


def _pad_kept(rows: Sequence[MemberRow]) -> Tensor | None:
    if all(row.kept_token_ids is None for row in rows):
        return None
    kept = [left for row in rows for left in row.kept_token_ids or ((),) * len(row.token_ids)]
    return _pad(kept, -1, torch.int64) if kept else None


def pad_token_masks(rows: Sequence[MemberRow]) -> Tensor:
    """Return [M, T] bool, true on sampled tokens."""
    masks = [[True] * len(row.token_ids) if row.token_mask is None else row.token_mask for row in rows]
    return _pad(masks, False, torch.bool)


def pad_logprobs(
    rows: Sequence[MemberRow],
    name: Literal["old_logprobs", "reference_logprobs", "engine_logprobs"],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the rows' log-probabilities of one kind as [M, T], 0 on padding.

    Raises:
        ShapeError: a row has none yet.
    """
    for row in rows:
        if getattr(row, name) is None:
            remedy = "keep the engine's" if name == "engine_logprobs" else "score the rows with the trainer"
            raise ShapeError(f"{row.name}: no {name}; {remedy} before the update")
    return _pad([getattr(row, name) for row in rows], 0.0, dtype)


def _pad(sequences: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
    length_M = torch.tensor([len(sequence) for sequence in sequences])
    is_real = torch.arange(int(length_M.max())) < length_M[:, None]
    padded = torch.full(is_real.shape, fill, dtype=dtype)
    # One conversion for all rows: one for each would cost more than the rest of a small step's batching.
    padded[is_real] = torch.tensor(list(itertools.chain.from_iterable(sequences)), dtype=dtype)
    return padded
