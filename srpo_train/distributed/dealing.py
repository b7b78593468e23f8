"""Who computes what: the events of a mini-batch are dealt to ranks whole, and balanced by tokens.

Every rank knows the whole mini-batch, a few lists of numbers, and computes the forward passes of its own events. So
counts, ratios, clips and reports are those of the whole mini-batch on every rank, and no rank needs to be told how many
passes another one makes: each works that out as the other does.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from torch import Tensor

from srpo_train.batching import EventBatch, MemberRow, micro_batches
from srpo_train.distributed.ranks import Ranks
from srpo_train.set_gradient import Partition


class Work(NamedTuple):
    """One rank's part of a mini-batch, as `srpo_train.set_gradient` takes it.

    Example:
        Of rows 0 to 3 this rank has the first two: ``Work([[0], [1]], [None, None], ranks.share)``.
    """

    partition: Partition
    """Row indices of each forward pass."""
    stand_ins: Sequence[int | None] | None
    """By pass, the row to go along with where it has none of its own; see `set_gradient.accumulate_set_gradient`."""
    share: Callable[[Tensor], Tensor] | None
    """Sums a matrix over ranks."""


def deal_events(batch: EventBatch, num_ranks: int) -> list[list[int]]:
    """Deal whole events to ranks, the longest first, each to the rank with the fewest tokens so far.

    The most loaded rank then has at most 4/3 of the least possible, or one event. With fewer events than ranks some
    get none.

    Returns:
        Ascending event indices of each rank.
    """
    tokens = [0] * batch.num_events
    for row in batch.rows:
        tokens[row.event_index] += row.num_tokens
    loads = [(0, rank) for rank in range(num_ranks)]
    dealt: list[list[int]] = [[] for _ in range(num_ranks)]
    for event in sorted(range(batch.num_events), key=lambda event: (-tokens[event], event)):
        load, rank = heapq.heappop(loads)
        dealt[rank].append(event)
        heapq.heappush(loads, (load + tokens[event], rank))
    return [sorted(events) for events in dealt]


def deal_work(
    batch: EventBatch, max_tokens: int, ranks: Ranks, in_step: Collection[str] = (), packed: Collection[str] = ()
) -> Work:
    """Return this rank's forward passes over a mini-batch.

    Args:
        batch: The whole mini-batch, the same on every rank.
        max_tokens: Tokens of one pass, padding included.
        ranks: The processes.
        in_step: Policies whose parameters are spread over the ranks. A forward pass of theirs is a common one, so every
            rank makes as many as the one with most of them does, in the same order.
        packed: Policies whose rows are packed rather than padded.
    """
    if ranks.size == 1:
        return Work(micro_batches(batch.rows, max_tokens, packed), None, None)
    passes = [_passes(batch, events, max_tokens, packed) for events in deal_events(batch, ranks.size)]
    partition: list[list[int]] = []
    stand_ins: list[int | None] = []
    for policy_id in sorted({row.policy_id for row in batch.rows}):
        own = passes[ranks.rank][policy_id]
        if policy_id in in_step:
            own = own + [[]] * (max(len(theirs[policy_id]) for theirs in passes) - len(own))
        partition += own
        stand_ins += [_shortest(batch.rows, policy_id) if policy_id in in_step else None] * len(own)
    return Work(partition, stand_ins, ranks.share)


def _passes(
    batch: EventBatch, events: Sequence[int], max_tokens: int, packed: Collection[str]
) -> dict[str, list[list[int]]]:
    """Cut the rows of some events into passes, by policy."""
    mine = set(events)
    indices = [index for index, row in enumerate(batch.rows) if row.event_index in mine]
    found: dict[str, list[list[int]]] = defaultdict(list)
    for part in micro_batches([batch.rows[index] for index in indices], max_tokens, packed):
        found[batch.rows[indices[part[0]]].policy_id].append([indices[position] for position in part])
    return found


def _shortest(rows: Sequence[MemberRow], policy_id: str) -> int:
    indices = [index for index, row in enumerate(rows) if row.policy_id == policy_id]
    return min(indices, key=lambda index: rows[index].num_tokens)
