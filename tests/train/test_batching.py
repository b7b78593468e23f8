"""Whole events in, padded tensors out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_envs.errors import ConfigError, IncompleteEventError, ShapeError
from srpo_train.batching import (
    EventBatch,
    MemberRow,
    drop_incomplete,
    drop_overlong,
    event_minibatches,
    micro_batches,
    pad_logprobs,
    pad_rows,
)
from srpo_train.objective import AdvantageSpec, CreditTable, estimate_advantage

EOS = 2


def make_row(event=0, member=0, prompt=(5, 6), response=(7, 8, EOS), policy="solver", **changes) -> MemberRow:
    return MemberRow(
        event_index=event, member_index=member, policy_id=policy, prompt_ids=prompt, token_ids=response, **changes
    )


def make_batch(cardinalities, **changes) -> EventBatch:
    rows = [make_row(event=event, member=j) for event, k in enumerate(cardinalities) for j in range(k)]
    columns = {
        "rows": rows,
        "cardinality_E": torch.tensor(cardinalities, dtype=torch.int64),
        "advantage_E": torch.arange(len(cardinalities)).float(),
        "event_ids": [f"ep/e{index}" for index in range(len(cardinalities))],
    }
    return EventBatch(**(columns | changes))


@pytest.mark.parametrize("name", ["old_logprobs", "token_mask", "reference_logprobs"])
@pytest.mark.parametrize("length", [2, 4])
def test_ids_mask_and_log_probs_have_one_length(name, length):
    """br-002: a list that grew or shrank beside the sampled ids is refused where the row is made."""
    with pytest.raises(ShapeError, match=rf"one entry of {name} for each of 3 token ids, got {length}"):
        make_row(**{name: [1.0] * length})


def test_a_row_without_prompt_is_refused():
    with pytest.raises(ShapeError, match="member_index 4: expected a prompt of at least one token"):
        make_row(member=4, prompt=())


def test_a_batch_checks_its_columns():
    with pytest.raises(ShapeError, match="expected 2 entries of advantage_E, got 1"):
        make_batch([1, 1], advantage_E=torch.zeros(1))
    with pytest.raises(IncompleteEventError, match=r"row of event 2, member_index 0: .*\[0, 1\)"):
        make_batch([1], rows=[make_row(event=2)])


def test_incomplete_events_are_dropped_whole_and_counted():
    batch = make_batch([2, 1, 2, 1, 2])
    rows = [row for row in batch.rows if (row.event_index, row.member_index) != (0, 1)]  # event 0 lost a member
    rows.append(make_row(event=1, member=1))  # event 1 has one too many
    rows = [replace(row, member_index=0) if row.event_index == 2 else row for row in rows]  # event 2: seat 0 twice
    kept, report = drop_incomplete(replace(batch, rows=rows))
    assert report.kept == (3, 4)
    assert report.dropped == {0: "missing_member", 1: "extra_member", 2: "missing_member"}
    assert report.reasons == {"missing_member": 2, "extra_member": 1}
    assert kept.event_ids == ["ep/e3", "ep/e4"]
    assert kept.advantage_E.tolist() == [3.0, 4.0]
    assert kept.event_of_row_M.tolist() == [0, 1, 1]


def test_a_failed_member_removes_its_event_and_no_token_is_made_up():
    """br-024: a crash leaves a hole, the event goes, and what remains is token for token what was sampled."""
    batch = make_batch([3, 1])
    survivors = [row for row in batch.rows if (row.event_index, row.member_index) != (0, 2)]
    kept, report = drop_incomplete(replace(batch, rows=survivors))
    assert report.reasons == {"missing_member": 1}
    assert [list(row.token_ids) for row in kept.rows] == [[7, 8, EOS]]
    assert pad_rows(kept.rows).token_mask_MT.sum() == 3


def test_dropped_events_do_not_move_the_baseline():
    """br-012: the report selects the returns, so the statistics cover the kept events only."""
    batch = make_batch([1, 1, 1])
    kept, report = drop_incomplete(replace(batch, rows=batch.rows[:2]))
    table = CreditTable(
        return_E=torch.tensor([1.0, 0.0, -50.0]),
        group_E=torch.zeros(3, dtype=torch.int64),
        event_of_row_M=torch.arange(3),
    ).select(torch.tensor(report.kept))
    advantage = estimate_advantage(table, AdvantageSpec(group_key=("group",))).value
    # returns 1 and 0: +-0.5 / (sqrt(0.5) + 1e-6)
    assert advantage.tolist() == pytest.approx([0.7071058, -0.7071058], abs=1e-6)
    assert kept.num_events == 2


def test_overlong_rows_take_their_event_with_them():
    batch = make_batch([2, 1])
    rows = [replace(row, token_ids=[7] * 9) if row.member_index == 1 else row for row in batch.rows]
    kept, report = drop_overlong(replace(batch, rows=rows), max_tokens=10)  # 2 + 9 = 11 tokens
    assert report.dropped == {0: "overlong"}
    assert [(row.event_index, row.member_index) for row in kept.rows] == [(0, 0)]
    assert drop_overlong(replace(batch, rows=rows), max_tokens=11)[1].dropped == {}


def test_mini_batches_hold_every_event_once_and_whole():
    batch = make_batch([2, 1, 3, 1, 2, 1, 4])
    parts = list(event_minibatches(batch, 3, seed=0))
    assert sorted(part.num_events for part in parts) == [2, 2, 3]
    assert sorted(name for part in parts for name in part.event_ids) == batch.event_ids
    for part in parts:
        assert drop_incomplete(part)[1].dropped == {}
        assert [float(name[-1]) for name in part.event_ids] == part.advantage_E.tolist()
    assert sum(len(part.rows) for part in parts) == len(batch.rows)


def test_mini_batches_depend_on_the_seed_alone():
    batch = make_batch([1] * 20)

    def order(seed):
        return [name for part in event_minibatches(batch, 4, seed) for name in part.event_ids]

    torch.manual_seed(1)
    first = order(0)
    torch.manual_seed(2)
    assert order(0) == first
    assert order(1) != first


def test_fewer_events_than_mini_batches_make_one_each():
    assert [part.num_events for part in event_minibatches(make_batch([1, 2]), 5, seed=0)] == [1, 1]
    assert list(event_minibatches(make_batch([]), 5, seed=0)) == []
    with pytest.raises(ConfigError, match="num_minibatches"):
        list(event_minibatches(make_batch([1]), 0, seed=0))


def test_late_events_of_a_long_episode_are_all_trained():
    """br-018: an episode of 40 events is 40 rows of their own, none cut at a per-turn limit."""
    rows = [make_row(event=turn, prompt=[5] * (1 + turn), response=[7] * 30) for turn in range(40)]
    batch = make_batch([1] * 40, rows=rows)
    kept, report = drop_overlong(batch, max_tokens=70)
    assert report.dropped == {}
    parts = list(event_minibatches(kept, 4, seed=0))
    assert sum(part.num_events for part in parts) == 40
    assert sum(int(pad_rows(part.rows).token_mask_MT.sum()) for part in parts) == 40 * 30


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.sampled_from("ab")), max_size=20), st.integers(1, 90)
)
@settings(max_examples=100, deadline=None)
def test_micro_batches_partition_the_rows_within_the_budget(shapes, max_tokens):
    rows = [make_row(prompt=[5] * p, response=[7] * r, policy=policy) for p, r, policy in shapes]
    parts = micro_batches(rows, max_tokens)
    assert Counter(index for part in parts for index in part) == Counter(range(len(rows)))
    for part in parts:
        assert len({rows[index].policy_id for index in part}) == 1
        lengths = [rows[index].num_tokens for index in part]
        assert lengths == sorted(lengths, reverse=True)
        assert len(part) == 1 or len(part) * lengths[0] <= max_tokens


def test_micro_batches_fill_the_budget():
    rows = [make_row(prompt=[5] * length, response=[]) for length in (2, 4, 3, 1)]
    # longest first: 4 and 3 take 8 of 8; 2 and 1 take 4
    assert micro_batches(rows, 8) == [[1, 2], [0, 3]]
    with pytest.raises(ConfigError, match="max_tokens"):
        micro_batches(rows, 0)


def test_rows_of_very_different_length_do_not_share_a_pass():
    rows = [make_row(prompt=[5] * length, response=[]) for length in (1000, 744, 600)]
    # 744 beside 1000 is 256 tokens of padding, about another pass; 600 would make it 656 of 3000, above an eighth
    assert micro_batches(rows, 10_000) == [[0, 1], [2]]
    assert micro_batches(rows, 1_999) == [[0], [1, 2]]
    # 257 tokens of padding would be more than a pass costs, but in 9000 tokens they are few
    many = [make_row(prompt=[5] * length, response=[]) for length in [1000] * 8 + [743]]
    assert micro_batches(many[7:], 10_000) == [[0], [1]]
    assert micro_batches(many, 10_000) == [list(range(9))]


def test_rows_are_padded_on_the_right():
    padded = pad_rows([make_row(), make_row(prompt=(5,), response=(9,))], pad_token_id=0)
    assert padded.input_ids_MS.tolist() == [[5, 6, 7, 8, EOS], [5, 9, 0, 0, 0]]
    assert padded.token_ids_MT.tolist() == [[7, 8, EOS], [9, 0, 0]]
    assert padded.token_mask_MT.tolist() == padded.is_response_MT.tolist() == [[True] * 3, [True, False, False]]
    assert padded.prompt_length_M.tolist() == [2, 1]


def test_a_pad_id_that_equals_eos_loses_nothing():
    """br-009: masks come from lengths, so the last token of a response stays in and padding stays out."""
    rows = [make_row(response=(7, 8, EOS)), make_row(response=(EOS,)), make_row(response=(7, EOS, 8, EOS))]
    with_eos, with_zero = pad_rows(rows, pad_token_id=EOS), pad_rows(rows, pad_token_id=0)
    assert torch.equal(with_eos.is_response_MT, with_zero.is_response_MT)
    assert torch.equal(with_eos.token_mask_MT, with_zero.token_mask_MT)
    assert with_eos.token_mask_MT.sum(dim=1).tolist() == [3, 1, 4]
    assert with_eos.is_response_MT.sum(dim=1).tolist() == [3, 1, 4]


def test_a_response_without_eos_has_no_padding_in_its_mask():
    """br-010: a truncated response is as long as what was sampled."""
    padded = pad_rows([make_row(response=(7, 8)), make_row(response=(7, 8, 9, 10, EOS))])
    assert padded.token_mask_MT.sum(dim=1).tolist() == [2, 5]


def test_environment_text_is_read_but_masked():
    """br-015: the mask sums to the number of sampled tokens."""
    padded = pad_rows([make_row(response=(7, 30, 31, 8), token_mask=(True, False, False, True)), make_row()])
    assert padded.token_mask_MT.sum(dim=1).tolist() == [2, 3]
    assert padded.is_response_MT.sum(dim=1).tolist() == [4, 3]
    assert padded.input_ids_MS.tolist() == [[5, 6, 7, 30, 31, 8], [5, 6, 7, 8, EOS, 0]]


def test_empty_responses_are_legal():
    """br-011: an empty response is a row of no tokens, alone in a batch or beside others."""
    assert pad_rows([make_row(response=())]).token_ids_MT.shape == (1, 0)
    padded = pad_rows([make_row(response=()), make_row()])
    assert padded.token_mask_MT.sum(dim=1).tolist() == [0, 3]
    assert padded.input_ids_MS.tolist() == [[5, 6, 0, 0, 0], [5, 6, 7, 8, EOS]]
    with pytest.raises(ShapeError, match="at least one row"):
        pad_rows([])


def test_log_probs_are_padded_with_zeros_and_must_exist():
    rows = [make_row(old_logprobs=[-1.0, -2.0, -3.0]), make_row(member=1, response=(7,), old_logprobs=[-0.5])]
    assert pad_logprobs(rows, "old_logprobs").tolist() == [[-1.0, -2.0, -3.0], [-0.5, 0.0, 0.0]]
    with pytest.raises(ShapeError, match="member_index 1: no reference_logprobs"):
        pad_logprobs([make_row(member=1)], "reference_logprobs")
