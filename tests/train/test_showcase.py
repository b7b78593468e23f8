"""`srpo_train.showcase`: which episodes are shown, and that the choice is bounded, fair and repeatable."""

from __future__ import annotations

import dataclasses
from collections import Counter

from factories import make_episode, make_event, make_member

from srpo_envs.records import Episode
from srpo_train.showcase import choose_episodes


def episodes(number: int, **fields: object) -> list[Episode]:
    return [make_episode(episode_id=f"ep{place}", reward=0.5, **fields) for place in range(number)]


def told(found: list[Episode], number: int = 6, seed: int = 0) -> dict[str, str]:
    return {shown.episode.episode_id: shown.reason for shown in choose_episodes(found, number, seed)}


def test_the_remarkable_come_first_and_none_twice() -> None:
    found = episodes(9)
    found[1] = make_episode(episode_id="good", reward=1.0)
    found[3] = make_episode(episode_id="bad", reward=0.5, penalty=0.4)
    refused = make_event(episode_id="odd", members=tuple(make_member(seat, malformed_reason="no") for seat in range(3)))
    found[5] = dataclasses.replace(make_episode(episode_id="odd", reward=0.5), events=(refused,))
    found[7] = make_episode((7, 1, 1), episode_id="wide", reward=0.5)
    reasons = told(found)
    assert list(reasons.items())[:4] == [
        ("good", "best"),
        ("bad", "worst"),
        ("odd", "malformed"),
        ("wide", "largest K"),
    ]
    assert list(reasons.values())[4:] == ["sampled"] * 2


def test_of_equally_good_episodes_the_longest_is_best_and_none_is_worst() -> None:
    found = episodes(4)
    found[2] = make_episode((3, 1, 1, 1, 1), episode_id="long", reward=0.5)
    reasons = told(found)
    assert reasons.pop("long") == "best"
    assert set(reasons.values()) <= {"largest K", "sampled"}


def test_one_episode_is_shown_once_for_its_first_reason() -> None:
    assert told(episodes(1)) == {"ep0": "best"}
    assert told([]) == {}


def test_never_more_than_asked_for_and_all_where_there_are_few() -> None:
    for number in range(1, 8):
        assert len(told(episodes(20), number)) == number
    assert len(told(episodes(3), 8)) == 3


def test_the_sample_follows_its_seed_and_reaches_everyone() -> None:
    found = episodes(12)
    assert told(found, 5, 1) == told(found, 5, 1)
    drawn = Counter(name for seed in range(400) for name in told(found, 5, seed))
    others = [drawn[f"ep{place}"] for place in range(1, 12)]  # ep0 is best at every draw
    # of the other 11, four are shown: 400 * 4 / 11 = 145 each, with a standard deviation of about 10
    assert min(others) > 100
    assert max(others) < 190
