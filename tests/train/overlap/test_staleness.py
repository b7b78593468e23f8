"""The rules of staleness, on random schedules: no group too old, none dropped, no wait without an end."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_train.overlap.staleness import Begun, choose, num_admitted


def begun(*groups: tuple[int, bool]) -> list[Begun]:
    return [
        Begun(position=place, version=version, is_complete=complete) for place, (version, complete) in enumerate(groups)
    ]


@pytest.mark.parametrize(
    ("num_untrained", "max_lag", "lead", "expected"),
    [(0, 0, 0, 4), (4, 0, 0, 0), (3, 2, 0, 9), (8, 2, 1, 0), (20, 2, 0, 0)],  # steps of 4: (2 + 1 - 1) * 4 - 8 = 0
)
def test_as_many_groups_are_begun_as_can_be_trained_in_time(num_untrained, max_lag, lead, expected):
    assert num_admitted(num_untrained, per_step=4, max_lag=max_lag, lead=lead) == expected


def test_the_oldest_complete_groups_are_chosen():
    groups = begun((1, True), (0, True), (0, False), (1, True))
    chosen = choose(groups, num_wanted=2, num_left=0, per_step=2, version=1, max_lag=2)
    assert [group.position for group in chosen] == [1, 0]


def test_a_group_that_would_be_too_old_next_time_is_waited_for():
    groups = begun((0, False), (1, True), (1, True))
    assert choose(groups, num_wanted=2, num_left=0, per_step=2, version=1, max_lag=1) is None
    groups[0] = dataclasses.replace(groups[0], is_complete=True)
    chosen = choose(groups, num_wanted=2, num_left=0, per_step=2, version=1, max_lag=1)
    assert [group.position for group in chosen] == [0, 1]


def test_it_is_not_waited_for_while_the_same_step_has_room_left_for_it():
    groups = begun((0, False), (1, True), (1, True))
    assert choose(groups, num_wanted=1, num_left=1, per_step=2, version=1, max_lag=1) is not None


def test_groups_that_need_more_steps_than_are_left_are_waited_for():
    # Three groups of version 0 need two steps of 2; taking younger ones now would leave one of them to a third.
    groups = begun((0, False), (0, False), (0, False), (1, True), (1, True))
    assert choose(groups, num_wanted=2, num_left=0, per_step=2, version=1, max_lag=2) is None


@given(st.integers(0, 2**20), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_no_schedule_makes_a_group_too_old_or_stops(seed, per_step, max_lag, num_parts):
    rng = random.Random(seed)
    groups: dict[int, Begun] = {}
    trained: list[int] = []
    in_engines = position = 0
    num_parts = min(num_parts, per_step)
    for version in range(6):  # training steps
        num_left, taken = per_step, []
        for part in range(num_parts):
            wanted = -(-num_left // (num_parts - part))
            num_left -= wanted
            chosen = None
            while chosen is None:
                untrained = len(groups) + len(taken)
                for _ in range(num_admitted(untrained, per_step=per_step, max_lag=max_lag, lead=version - in_engines)):
                    groups[position] = Begun(position=position, version=in_engines, is_complete=False)
                    position += 1
                if in_engines < version and rng.random() < 0.5:
                    in_engines = version
                under_way = [group for group in groups.values() if not group.is_complete]
                for group in under_way:
                    if rng.random() < 0.5:
                        groups[group.position] = dataclasses.replace(group, is_complete=True)
                sizes = {"num_wanted": wanted, "num_left": num_left, "per_step": per_step}
                chosen = choose(list(groups.values()), **sizes, version=version, max_lag=max_lag)
                may_go_on = len(under_way) or in_engines < version
                assert chosen is not None or may_go_on or untrained < per_step, "waits for nothing"
            taken += [groups.pop(group.position) for group in chosen]
        assert all(version - group.version <= max_lag for group in taken)
        trained += [group.position for group in taken]
    assert len(set(trained)) == len(trained) == 6 * per_step
