from __future__ import annotations

import random

import pytest
from team_script import ENV_ID, SEED, played, replies_of, story

import srpo_envs

gem = pytest.importorskip("gem")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PLAY = "srpo_envs.integrations.gem:gem/Play-v0"


# --- its games here -----------------------------------------------------------------------------------------------


def test_a_team_plays_a_game_of_gem() -> None:
    env = srpo_envs.make(PLAY, num_players=2)
    before = random.getstate()
    active = env.reset(seed=5)
    assert "Guess The Number" in active.members[1].prompt
    number = 0
    while active:
        number += 1
        result = env.step(active.outputs([rf"\boxed{{{number}}}", "no idea"]))
        active = result.next
    assert random.getstate() == before
    assert [event.cardinality for event in env.episode.events] == [2] * number
    assert {event.members[1].malformed_reason for event in env.episode.events} == {"no boxed answer"}
    assert srpo_envs.replay(env.episode) == env.episode


def test_the_team_is_paid_what_gem_pays() -> None:
    from srpo_envs.integrations.gem import play

    theirs = gem.make("game:GuessTheNumber-v0-easy")
    theirs.reset(seed=11)
    moves, total, ended = [], 0.0, False
    while not ended:
        moves.append(rf"\boxed{{{len(moves) + 1}}}")
        _, paid, terminated, truncated, _ = theirs.step(moves[-1])
        total, ended = total + float(paid), terminated or truncated
    assert not play("game:GuessTheNumber-v0-easy", 11, moves[:-1]).is_over or len(moves) == 1
    position = play("game:GuessTheNumber-v0-easy", 11, moves)
    assert (position.is_over, position.reward) == (True, pytest.approx(total))


def test_an_unknown_game_is_named() -> None:
    with pytest.raises(srpo_envs.errors.UnknownIdError, match="GuessTheNumber"):
        srpo_envs.make(PLAY, game="game:GuessTheNumber-v0-esy")


# --- ours there ---------------------------------------------------------------------------------------------------


@pytest.fixture
def env():
    from srpo_envs.integrations.gem import register_all

    assert f"srpo_envs/{ENV_ID}" in register_all()
    register_all()  # a second time changes nothing
    return gem.make(f"srpo_envs/{ENV_ID}", num_solvers=3)


def test_gem_plays_ours_event_by_event(env) -> None:
    observations, infos = env.reset(seed=SEED)
    ids = []
    while env.agents:
        active = [agent for agent in env.agents if infos[agent]["active"]]
        assert [agent for agent in env.agents if observations[agent]] == active
        ids.append(infos[active[0]]["event_id"])
        observations, rewards, terminations, _, infos = env.step(replies_of(active))
    assert ids == [event.event_id for event in played().events]
    assert set(rewards.values()) == {1.0}
    assert all(terminations.values())
    assert infos["solver_0"]["outcome"]["correct"] is True
    assert story(env.set_env.episode) == story(played())


def test_gem_keeps_no_event_in_part(env) -> None:
    env.reset(seed=SEED)
    with pytest.raises(srpo_envs.errors.MemberMismatchError, match="solver_2"):
        env.step(replies_of(["solver_0", "solver_1"]))
    assert env.set_env.episode.events == ()
