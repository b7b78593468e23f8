"""Every registered id passes the public suites of PettingZoo and Gymnasium, and our own."""

from __future__ import annotations

import functools
import warnings

import gymnasium
import pettingzoo
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import srpo_envs
from srpo_envs.errors import SandboxError
from srpo_envs.sandbox.shared import open_sandbox

with warnings.catch_warnings():
    # Where pygame is installed, PettingZoo's suite imports one of its own games by a route that PettingZoo deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

IDS = srpo_envs.list_envs()

NOT_ABOUT_TEXT = (
    # PettingZoo's AEC suite warns whenever observations are not arrays in boxes; ours are texts.
    "Observation is not a NumPy array",
    "Observation space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
    "Action space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
)


@pytest.mark.parametrize("env_id", IDS)
def test_pettingzoo_parallel_suite(env_id):
    parallel_api_test(pettingzoo.make("parallel", env_id), num_cycles=100)


@pytest.mark.parametrize("env_id", IDS)
def test_pettingzoo_aec_suite(env_id):
    with warnings.catch_warnings():
        for message in NOT_ABOUT_TEXT:
            warnings.filterwarnings("ignore", message)
        api_test(pettingzoo.make("aec", env_id), num_cycles=100)


@pytest.mark.parametrize("env_id", IDS)
def test_pettingzoo_seed_suites(env_id):
    parallel_seed_test(lambda: pettingzoo.make("parallel", env_id), num_cycles=50)
    seed_test(lambda: pettingzoo.make("aec", env_id), num_cycles=50)


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_suite(env_id):
    check_env(gymnasium.make(env_id).unwrapped)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_vectors_run(env_id, mode):
    makers = [functools.partial(gymnasium.make, env_id)] * 2
    for vector in (
        SyncVectorEnv(makers, autoreset_mode=mode),
        AsyncVectorEnv(makers, shared_memory=False, autoreset_mode=mode),
    ):
        observations, _ = vector.reset(seed=0)
        vector.action_space.seed(0)
        for _ in range(8):
            assert observations in vector.observation_space
            observations, rewards, terminated, truncated, _ = vector.step(vector.action_space.sample())
            assert rewards.shape == (2,)
            is_over = terminated | truncated
            if mode is AutoresetMode.DISABLED and is_over.any():
                observations, _ = vector.reset(options={"reset_mask": is_over})
        vector.close()


def skip_without_sandbox():
    """Gold programs are run, which not every machine allows."""
    try:
        open_sandbox("namespaces")
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("env_id", IDS)
def test_set_env_suite(env_id):
    if "Code" in env_id:
        skip_without_sandbox()
    report = srpo_envs.check_set_env(functools.partial(srpo_envs.make, env_id), num_episodes=12)
    unseen = [line for line in report.not_checked if line.startswith("role")]
    assert unseen == []
