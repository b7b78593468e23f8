"""The workflow that plays other libraries' games, on a game of this test."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

import srpo_envs
from srpo_envs.errors import ScheduleError, ToolError
from srpo_envs.integrations.games import Games, GameTeam, Position, own_random
from srpo_envs.parsing import Malformed, Parsed


def count_down(game: str, seed: int, moves: Sequence[str]) -> Position:
    """Say what is left of a drawn number; a move that is no number ends the game."""
    with own_random(seed):
        left = random.randint(3, 9)
    text, reward = f"{left} left", 0.0
    for move in moves:
        if not move.isdigit():
            return Position(text="not a number", reward=-1.0, is_over=True)
        left -= int(move)
        text, reward = f"{text}; {left} left", float(left == 0)
    return Position(text=text, reward=reward, is_over=left <= 0)


def read_number(text: str) -> Parsed | Malformed:
    return Parsed(text.strip()) if text.strip().isdigit() else Malformed("no number")


def make_game(**team) -> GameTeam:
    return GameTeam(Games("here", "countdown", size=4), count_down, read_number, **team)


def test_each_move_is_an_event_of_all_players() -> None:
    env = make_game(num_players=3)
    active = env.reset(seed=0, options={"task_index": 1})
    left = int(active.members[0].prompt.split("\n# Game so far\n")[1].split()[0])
    result = env.step(active.outputs(["1", "1", "2"]))
    assert (result.event.cardinality, result.event.event_type) == (3, "player")
    assert f"{left - 1} left" in result.next.members[2].prompt
    result = env.step(result.next.outputs([str(left - 1)] * 3))
    assert (result.terminated, result.reward, result.info["correct"]) == (True, 1.0, True)


def test_the_first_of_equal_proposals_is_played_and_malformed_ones_have_no_vote() -> None:
    env = make_game(num_players=3)
    active = env.reset(seed=0)
    result = env.step(active.outputs(["hm", "2", "1"]))
    assert result.event.tool_calls[-1].arguments["moves"] == ("2",)
    assert result.event.members[0].malformed_reason == "no number"
    assert result.reward == pytest.approx(-0.1)


def test_without_a_readable_move_the_text_goes_to_the_game_as_it_is() -> None:
    env = make_game()
    result = env.step(env.reset(seed=0).outputs(["I give up"]))
    assert result.terminated
    assert env.episode.reward == -1.0
    assert env.episode.info["answer"] == "I give up"


def test_an_episode_replays_and_branches_from_its_record_alone() -> None:
    env = make_game()
    active = env.reset(seed=0)
    while active:
        active = env.step(active.outputs(["1"])).next

    def gone(*_: object) -> Position:
        raise AssertionError("the game is not asked")

    without = GameTeam(Games("here", "countdown", size=4), gone, read_number)
    assert without.resume(env.episode) is None
    assert without.episode.events == env.episode.events
    again = make_game()
    pending = again.resume(env.episode, num_events=1, episode_id="branch")
    assert pending.state_id == env.episode.events[1].state_id
    assert again.step(pending.outputs(["9"])).terminated


def test_a_game_that_fails_says_nothing_about_the_policy() -> None:
    def broken(*_: object) -> Position:
        raise RuntimeError("no dictionary")

    with pytest.raises(ToolError, match="no dictionary"):
        GameTeam(Games("here", "broken"), broken, read_number).reset(seed=0)


def test_games_have_a_random_stream_of_their_own() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, again, other = (count_down("", seed, ()) for seed in (5, 5, 7))
    assert first == again != other
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_the_contract_holds() -> None:
    report = srpo_envs.check_set_env(
        lambda: make_game(num_players=2), policy=lambda member, rng: str(rng.integers(1, 4)), num_episodes=4
    )
    assert not report.failures


def test_nothing_is_graded() -> None:
    games = Games("here", "countdown")
    with pytest.raises(ScheduleError, match="pays its own reward"):
        games.grade(games.task(0), "1")


@pytest.mark.parametrize("wrong", [{"size": 0}, {"seed": -1}])
def test_impossible_lists_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="size >= 1 and seed >= 0"):
        Games("here", "countdown", **wrong)
