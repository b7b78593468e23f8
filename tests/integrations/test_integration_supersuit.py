from __future__ import annotations

import pytest
from team_script import SEED, make_team, played, replies_of, story

from srpo_envs import ParallelSetEnv

supersuit = pytest.importorskip("supersuit")

WORKING = {
    "clip_reward_v0": lambda env: supersuit.clip_reward_v0(env),
    "reward_lambda_v0": lambda env: supersuit.reward_lambda_v0(env, lambda reward: reward),
    "action_lambda_v1": lambda env: supersuit.action_lambda_v1(env, lambda text, space: text, lambda space: space),
    "observation_lambda_v0": lambda env: supersuit.observation_lambda_v0(
        env, lambda seen, space: seen, lambda space: space
    ),
}


@pytest.mark.parametrize("name", WORKING)
def test_wrappers_of_rewards_and_functions_keep_the_episode(name: str) -> None:
    inner = make_team()
    env = WORKING[name](ParallelSetEnv(inner))
    env.reset(seed=SEED)
    while env.agents:
        _, rewards, *_ = env.step(replies_of(env.agents))
    assert set(rewards.values()) == {1.0}
    assert story(inner.episode) == story(played())


def test_a_reward_wrapper_changes_what_agents_are_paid_and_not_the_record() -> None:
    inner = make_team()
    env = supersuit.reward_lambda_v0(ParallelSetEnv(inner), lambda reward: 2 * reward)
    env.reset(seed=SEED)
    while env.agents:
        _, rewards, *_ = env.step(replies_of(env.agents))
    assert set(rewards.values()) == {2.0}
    assert inner.episode.reward == 1.0


@pytest.mark.parametrize("name", ["black_death_v3", "flatten_v0", "pad_observations_v0", "agent_indicator_v0"])
def test_wrappers_of_arrays_refuse_texts_at_once(name: str) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        getattr(supersuit, name)(ParallelSetEnv(make_team())).reset(seed=SEED)
