"""Mini-batches that come one by one give the update they give when all are there."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from rank_world import Case, build_team, make_batch, whole_weights

from srpo_train.batching import EventBatch, join_batches
from srpo_train.config import OptimConfig
from srpo_train.learner import Learner
from srpo_train.objective import preset

OPTIM = OptimConfig(lr=0.5, eps=1.0, micro_batch_tokens=40)


def make_learner():
    team = build_team("shared")
    return Learner(team, preset("srpo", correction="event"), OPTIM, num_steps=4), team["a"]


def parts() -> list[EventBatch]:
    return [
        make_batch(Case(seed=seed, cardinalities=sizes), ["a"]) for seed, sizes in enumerate([(3, 1), (2,), (1, 4)])
    ]


def slowly(batches):
    for batch in batches:
        time.sleep(0.01)
        yield batch


def test_parts_that_come_late_give_the_weights_of_parts_that_are_there():
    early, policy = make_learner()
    early.update_in_parts(slowly(parts()), step=0)
    plain, other = make_learner()
    for part in parts():  # each its own batch of one mini-batch, in the same order
        order = torch.randperm(part.num_events, generator=torch.Generator().manual_seed(0)).argsort()
        plain.update(part.select(order.tolist()), step=0, seed=0)  # which `update` shuffles back
    assert torch.equal(whole_weights(policy), whole_weights(other))
    assert not torch.equal(whole_weights(policy), whole_weights(make_learner()[1]))


def test_a_single_part_is_the_plain_update():
    batch = join_batches(parts())
    early, policy = make_learner()
    metrics = early.update_in_parts([batch], step=0)
    plain, other = make_learner()
    expected = plain.update(batch, step=0, seed=0)
    torch.testing.assert_close(whole_weights(policy), whole_weights(other), rtol=0, atol=1e-12)
    assert metrics == pytest.approx(expected, abs=1e-9)


def test_the_gradient_of_a_part_is_divided_by_its_own_number_of_events():
    # The same events twice over in one part: twice the sum over twice the number.
    (batch, *_), (learner, policy), (other_learner, other) = parts(), make_learner(), make_learner()
    learner.update_in_parts([batch], step=0)
    other_learner.update_in_parts([join_batches([batch, replace(batch)])], step=0)
    torch.testing.assert_close(whole_weights(policy), whole_weights(other), rtol=0, atol=1e-12)


def test_no_part_no_update():
    learner, policy = make_learner()
    assert learner.update_in_parts([], step=0) == {}
    assert torch.equal(whole_weights(policy), whole_weights(build_team("shared")["a"]))


def test_joined_batches_keep_their_events_and_rows():
    batches = parts()
    joined = join_batches(batches)
    assert joined.num_events == 5
    assert joined.cardinality_E.tolist() == [3, 1, 2, 1, 4]
    assert torch.bincount(joined.event_of_row_M).tolist() == [3, 1, 2, 1, 4]
    assert joined.advantage_E.tolist() == [value for batch in batches for value in batch.advantage_E.tolist()]
