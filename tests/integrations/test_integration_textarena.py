from __future__ import annotations

import random

import pytest

import srpo_envs

pytest.importorskip("textarena")
pytestmark = pytest.mark.filterwarnings("ignore")
PLAY = "srpo_envs.integrations.textarena:textarena/Play-v0"


def test_a_team_plays_a_game_of_textarena() -> None:
    env = srpo_envs.make(PLAY, game="GuessTheNumber-v0", num_players=3)
    before = random.getstate()
    active = env.reset(seed=5)
    assert "Guess The Number" in active.members[2].prompt
    number = 0
    while active:
        number += 1
        active = env.step(active.outputs([f"I say [{number}]", f"[{number}]", "[20]"])).next
    assert random.getstate() == before
    assert env.episode.events[0].tool_calls[-1].arguments["moves"] == ("[1]",)
    assert env.episode.reward == 1.0
    assert srpo_envs.replay(env.episode) == env.episode


def test_a_text_without_a_move_stays_one() -> None:
    """TextArena allows one invalid move, and ends the game at the second."""
    env = srpo_envs.make(PLAY, game="GuessTheNumber-v0")
    result = env.step(env.reset(seed=5).outputs(["twelve"]))
    assert result.event.members[0].malformed_reason == "no move in brackets"
    assert "invalid move" in result.next.members[0].prompt
    assert env.step(result.next.outputs(["12"])).terminated


@pytest.mark.parametrize("game", ["FrozenLake-v0", "Mastermind-v0", "TowerOfHanoi-v0", "2048-v0-ultra-easy"])
def test_positions_depend_on_the_moves_alone(game: str) -> None:
    from srpo_envs.integrations.textarena import play

    moves = ["[left]", "[A C]"]
    assert play(game, 3, moves) == play(game, 3, moves)


@pytest.mark.parametrize("game", ["TicTacToe-v0", "PublicGoodsGame-v0"])
def test_games_of_several_players_are_refused(game: str) -> None:
    with pytest.raises(srpo_envs.errors.ConfigError, match="player"):
        srpo_envs.make(PLAY, game=game)


def test_an_unknown_game_is_named() -> None:
    with pytest.raises(srpo_envs.errors.UnknownIdError, match="GuessTheNumber"):
        srpo_envs.make(PLAY, game="GuessTheNumbr-v0")
