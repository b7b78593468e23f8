"""PettingZoo's conversions and wrappers, and Gymnasium's, around the standard views."""

from __future__ import annotations

import gymnasium
import pettingzoo
import pytest
from gymnasium import wrappers
from pettingzoo.utils import conversions
from pettingzoo.utils import wrappers as zoo_wrappers
from team_script import ENV_ID, SEED, make_team, played, replies_of, reply_of, story

from srpo_envs import AecSetEnv, JointSetEnv, ParallelSetEnv


def play_parallel(env: pettingzoo.ParallelEnv) -> tuple[int, float]:
    """Number of steps, and the last reward."""
    env.reset(seed=SEED)
    num_steps, reward = 0, 0.0
    while env.agents:
        _, rewards, *_ = env.step(replies_of(env.agents))
        num_steps, reward = num_steps + 1, max(rewards.values())
    return num_steps, reward


def play_aec(env: pettingzoo.AECEnv) -> float:
    env.reset(seed=SEED)
    reward = 0.0
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        env.step(None if terminated or truncated else reply_of(agent))
    return reward


def test_parallel_to_aec_plays_the_same_events() -> None:
    env = make_team()
    assert play_aec(conversions.parallel_to_aec(ParallelSetEnv(env))) == 1.0
    assert story(env.episode) == story(played())


def test_turns_of_the_aec_view_as_a_parallel_environment_keep_events_whole() -> None:
    env = make_team()
    assert play_parallel(conversions.turn_based_aec_to_parallel(AecSetEnv(env))) == (5, 1.0)
    assert story(env.episode) == story(played())


def test_the_conversion_that_would_ask_members_of_later_events_at_once_is_refused() -> None:
    with pytest.raises(AssertionError, match="is_parallelizable"):
        conversions.aec_to_parallel(AecSetEnv(make_team()))


@pytest.mark.parametrize("wrapper", ["OrderEnforcingWrapper", "AssertOutOfBoundsWrapper"])
def test_pettingzoo_wrappers_keep_the_episode(wrapper: str) -> None:
    env = make_team()
    assert play_aec(getattr(zoo_wrappers, wrapper)(AecSetEnv(env))) == 1.0
    assert story(env.episode) == story(played())


def test_several_episodes_in_one() -> None:
    steps, _ = play_parallel(zoo_wrappers.MultiEpisodeParallelEnv(ParallelSetEnv(make_team()), 2))
    assert steps == 6


WRAPPERS = {
    "TimeLimit": lambda env: wrappers.TimeLimit(env, 9),
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "PassiveEnvChecker": wrappers.PassiveEnvChecker,
    "OrderEnforcing": wrappers.OrderEnforcing,
    "TransformObservation": lambda env: wrappers.TransformObservation(env, lambda seen: seen, env.observation_space),
    "FilterObservation": lambda env: wrappers.FilterObservation(env, ["solver_0"]),
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 2),
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 1),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_gymnasium_wrappers_keep_the_episode(name: str) -> None:
    inner = make_team()
    env = WRAPPERS[name](JointSetEnv(inner))
    env.reset(seed=SEED)
    ended = False
    while not ended:
        _, reward, terminated, truncated, _ = env.step(replies_of(inner.possible_agents))
        ended = terminated or truncated
    assert reward == 1.0
    assert story(inner.episode) == story(played())


def test_stacked_prompts_begin_with_none() -> None:
    env = wrappers.FrameStackObservation(JointSetEnv(make_team()), 2, padding_type="zero")
    observation, _ = env.reset(seed=SEED)
    first, second = observation["solver_0"]["prompt"]
    assert (first, second != "") == ("", True)


def test_a_time_limit_truncates_as_gymnasium_does() -> None:
    env = gymnasium.make(f"srpo_envs/{ENV_ID}", max_episode_steps=1)
    env.reset(seed=SEED)
    _, _, terminated, truncated, info = env.step(replies_of(env.action_space))
    assert (terminated, truncated) == (False, True)
    assert info["event_id"].endswith("/e1")


def test_texts_have_no_flat_array() -> None:
    with pytest.raises(NotImplementedError):
        wrappers.FlattenObservation(JointSetEnv(make_team()))
