"""Events go to ranks whole, every row to one of them, and common passes are as many everywhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_train.batching import EventBatch, MemberRow
from srpo_train.distributed.dealing import deal_events, deal_work
from srpo_train.distributed.ranks import Ranks


@st.composite
def batches(draw):
    members = draw(st.lists(st.lists(st.tuples(st.integers(1, 30), st.sampled_from("abc")), min_size=1, max_size=4)))
    rows = [
        MemberRow(event_index=event, member_index=seat, policy_id=policy_id, prompt_ids=[1], token_ids=[2] * length)
        for event, seats in enumerate(members)
        for seat, (length, policy_id) in enumerate(seats)
    ]
    rows = draw(st.permutations(rows))
    return EventBatch(rows=rows, cardinality_E=torch.tensor([len(seats) for seats in members], dtype=torch.int64))


def work_of_all(batch, size, **options):
    return [deal_work(batch, 40, Ranks(rank, size), **options) for rank in range(size)]


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 5))
def test_every_event_goes_to_one_rank_with_all_its_rows(batch, size):
    dealt = deal_events(batch, size)
    assert sorted(event for events in dealt for event in events) == list(range(batch.num_events))
    for events, work in zip(dealt, work_of_all(batch, size), strict=True):
        rows = sorted(index for part in work.partition for index in part)
        assert rows == [index for index, row in enumerate(batch.rows) if row.event_index in events]


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(2, 5))
def test_common_passes_are_of_the_same_policies_in_the_same_order_everywhere(batch, size):
    def policies(work):
        pairs = zip(work.partition, work.stand_ins, strict=True)
        return [batch.rows[stand_in].policy_id for part, stand_in in pairs if stand_in is not None]

    works = work_of_all(batch, size, in_step={"a", "c"})
    assert all(policies(work) == policies(works[0]) for work in works)
    for work in works:
        for part, stand_in in zip(work.partition, work.stand_ins, strict=True):
            ids = {batch.rows[index].policy_id for index in [*part, *([] if stand_in is None else [stand_in])]}
            assert len(ids) == 1  # a pass without rows of its own has a stand-in, of one policy
            assert (stand_in is not None) == (ids <= {"a", "c"})


def event(index, length):
    return MemberRow(event_index=index, member_index=0, policy_id="a", prompt_ids=[1], token_ids=[2] * (length - 1))


def test_the_longest_events_are_dealt_first_to_the_rank_with_the_fewest_tokens():
    # 9 | 7, then 6 beside the 7 (9 | 13), 5 beside the 9 (14 | 13), 3 beside the 13 (14 | 16).
    lengths = [3, 9, 5, 7, 6]
    batch = EventBatch(
        rows=[event(*pair) for pair in enumerate(lengths)], cardinality_E=torch.ones(5, dtype=torch.int64)
    )
    assert deal_events(batch, 2) == [[1, 2], [0, 3, 4]]


def test_one_process_has_everything_and_shares_nothing():
    batch = EventBatch(rows=[event(0, 3), event(1, 4)], cardinality_E=torch.ones(2, dtype=torch.int64))
    work = deal_work(batch, 100, Ranks())
    assert (work.partition, work.stand_ins, work.share) == ([[1, 0]], None, None)


@pytest.mark.parametrize("size", [2, 3])
def test_with_fewer_events_than_ranks_some_get_none(size):
    batch = EventBatch(rows=[event(0, 3)], cardinality_E=torch.ones(1, dtype=torch.int64))
    assert deal_events(batch, size) == [[0], *([[]] * (size - 1))]
    assert [work.partition for work in work_of_all(batch, size)] == [[[0]], *([[]] * (size - 1))]
    together = [(work.partition, work.stand_ins) for work in work_of_all(batch, size, in_step={"a"})]
    assert together == [([[0]], [0]), *([([[]], [0])] * (size - 1))]
