"""Roles told apart by their tokens."""

from __future__ import annotations

import dataclasses
import math

import pytest
from factories import make_episode
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.records import Episode
from srpo_train.diagnostics.tokens import RoleStyles, TokenModel, count_tokens, divergence, separability

COUNTS = st.dictionaries(st.integers(0, 9), st.integers(1, 20), min_size=1)


def with_tokens(episode: Episode, by_role: dict[str, tuple[int, ...]]) -> Episode:
    """The episode in which every member of a role sampled these tokens."""
    events = tuple(
        dataclasses.replace(
            event,
            members=tuple(
                dataclasses.replace(member, token_ids=by_role[member.role], token_mask=(1,) * len(by_role[member.role]))
                for member in event.members
            ),
        )
        for event in episode.events
    )
    return dataclasses.replace(episode, events=events)


def roles_of(episode: Episode) -> list[str]:
    return sorted({member.role for event in episode.events for member in event.members})


def test_bayes_by_hand() -> None:
    model = TokenModel({"a": {1: 3}, "b": {2: 3}})
    # Vocabulary 2 and one class for the unseen: p(1|a) = 4/6, p(1|b) = 1/6; p(2|a) = 1/6, p(2|b) = 4/6.
    assert model.role_of({1: 2, 2: 1}) == "a"
    assert model.role_of({1: 1, 2: 2}) == "b"


def test_a_token_never_seen_decides_nothing() -> None:
    assert TokenModel({"a": {1: 1}, "b": {2: 1}}).role_of({2: 1, 99: 5}) == "b"


def test_roles_that_write_differently_are_told_apart_and_equal_ones_are_not() -> None:
    assert separability({"a": [{1: 2}] * 4, "b": [{2: 2}] * 4}) == {"a": 1.0, "b": 1.0}
    same = separability({"a": [{1: 2}] * 4, "b": [{1: 2}] * 4})
    assert same["a"] + same["b"] == 1.0  # one of the two takes all


def test_one_role_or_one_response_cannot_be_judged() -> None:
    assert separability({"a": [{1: 1}] * 3}) == {}
    assert separability({"a": [{1: 1}] * 3, "b": [{2: 1}]}) == {}


def test_divergence_by_hand() -> None:
    # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4): (log2(4/3) + (log2(2/3) + log2(2)) / 2) / 2 = 0.311278.
    assert divergence({1: 4}, {1: 1, 2: 1}) == pytest.approx(0.311278, abs=1e-6)


@given(COUNTS, COUNTS)
def test_divergence_is_symmetric_bounded_and_0_only_for_equal_shares(
    one: dict[int, int], other: dict[int, int]
) -> None:
    value = divergence(one, other)
    assert 0.0 <= value <= 1.0
    assert value == pytest.approx(divergence(other, one))
    assert divergence(one, {token: 3 * times for token, times in one.items()}) == pytest.approx(0.0, abs=1e-12)
    if not set(one) & set(other):
        assert value == pytest.approx(1.0)


def test_a_role_that_takes_over_another_s_style_is_captured_and_drifts() -> None:
    episode = make_episode((2, 1, 2, 1))
    first_role, second_role = roles_of(episode)[:2]
    others = dict.fromkeys(roles_of(episode), (5, 5))
    start = with_tokens(episode, others | {first_role: (1, 1), second_role: (2, 2)})
    later = with_tokens(episode, others | {first_role: (1, 1), second_role: (1, 1)})
    styles = RoleStyles()
    assert styles.measure([start])[f"rollout/role_capture/{second_role}"] == 0.0
    report = styles.measure([later])
    assert report[f"rollout/role_capture/{second_role}"] == 1.0
    assert report[f"rollout/role_capture/{first_role}"] == 0.0
    assert report[f"rollout/role_drift/{second_role}"] == 1.0
    assert report[f"rollout/role_drift/{first_role}"] == 0.0


def test_a_resumed_run_compares_with_the_same_start() -> None:
    episode = make_episode((2, 1, 2, 1))
    names = roles_of(episode)
    start = with_tokens(episode, {name: (index,) * 2 for index, name in enumerate(names)})
    later = with_tokens(episode, dict.fromkeys(names, (0, 7)))
    whole, resumed = RoleStyles(), RoleStyles()
    whole.measure([start])
    resumed.load_state_dict(whole.state_dict())
    assert resumed.measure([later]) == whole.measure([later])


def test_text_without_tokens_says_nothing() -> None:
    episode = with_tokens(make_episode((2, 1)), dict.fromkeys(roles_of(make_episode((2, 1))), ()))
    assert count_tokens([episode]) == {}
    assert RoleStyles().measure([episode]) == {}


def test_environment_tokens_do_not_count() -> None:
    episode = make_episode((1,))
    (event,) = episode.events
    (member,) = event.members
    masked = dataclasses.replace(member, token_ids=(4, 8, 4), token_mask=(1, 0, 1))
    episode = dataclasses.replace(episode, events=(dataclasses.replace(event, members=(masked,)),))
    assert count_tokens([episode]) == {member.role: [{4: 2}]}
    assert math.isclose(divergence({4: 2}, {4: 1}), 0.0)
