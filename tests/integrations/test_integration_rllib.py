from __future__ import annotations

import os

import numpy as np
import pytest
from team_script import ENV_ID, REPLIES, make_team, reply_of

import srpo_envs

pytest.importorskip("tree", reason="ray[rllib] is not installed")
pytest.importorskip("ray.rllib", exc_type=ImportError)
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

_CHARS = 32
_CONFIG = {
    "env_id": ENV_ID,
    "env_kwargs": {"num_solvers": 3},
    "max_prompt_chars": 200,
    "max_action_chars": _CHARS,
}


@pytest.fixture
def config():
    from ray.rllib.algorithms.ppo import PPOConfig

    from srpo_envs.integrations.rllib import RllibSetEnv

    return (
        PPOConfig()
        .environment(RllibSetEnv, env_config=_CONFIG)
        .env_runners(num_env_runners=0)
        .multi_agent(policies=set(REPLIES), policy_mapping_fn=lambda agent, *_, **__: agent.rpartition("_")[0])
    )


def scripted_modules():
    """One module per role that always says what the role says."""
    import torch
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.core.rl_module.torch import TorchRLModule

    from srpo_envs.integrations.rllib import write

    class Scripted(TorchRLModule):
        def _forward(self, batch, **_):
            letters = write(REPLIES[self.model_config["role"]], _CHARS)
            return {Columns.ACTIONS: torch.tensor(np.stack([letters] * len(batch[Columns.OBS])))}

    specs = {role: RLModuleSpec(module_class=Scripted, model_config={"role": role}) for role in REPLIES}
    return MultiRLModuleSpec(rl_module_specs=specs)


def test_an_active_set_is_the_agents_that_are_observed() -> None:
    from srpo_envs.integrations.rllib import RllibSetEnv, encode, write

    env = RllibSetEnv(_CONFIG)
    observations, infos = env.reset(seed=3)
    direct = make_team().reset(seed=3)
    assert list(observations) == ["solver_0", "solver_1", "solver_2"]
    assert {info["event_id"] for info in infos.values()} == {direct.event_id}
    assert infos["solver_0"]["prompt"] == direct.members[0].prompt
    assert np.array_equal(observations["solver_0"], encode(direct.members[0].prompt, 200))
    while True:
        actions = {agent: write(reply_of(agent), _CHARS) for agent in observations}
        observations, rewards, terminateds, _, infos = env.step(actions)
        if terminateds["__all__"]:
            break
    assert rewards == dict.fromkeys(env.possible_agents, 1.0)
    assert infos["solver_0"]["outcome"]["correct"] is True
    srpo_envs.replay(env.set_env.episode)


def test_a_prompt_that_does_not_fit_raises_instead_of_being_cut() -> None:
    from srpo_envs.integrations.rllib import RllibSetEnv

    with pytest.raises(srpo_envs.errors.EnvMisuseError, match="max_prompt_chars"):
        RllibSetEnv({**_CONFIG, "max_prompt_chars": 10}).reset(seed=3)


@pytest.mark.parametrize("text", ["", r"\boxed{4}", "a b\nc"])
def test_actions_are_texts_to_the_first_end_mark(text: str) -> None:
    from srpo_envs.integrations.rllib import decode, write

    assert decode(write(text, 12)) == text


def test_the_runner_of_rllib_samples_whole_episodes(config) -> None:
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

    runner = MultiAgentEnvRunner(config=config.rl_module(rl_module_spec=scripted_modules()))
    try:
        episodes = runner.sample(num_episodes=2, random_actions=False)
    finally:
        runner.stop()
    for episode in episodes:
        agents = episode.agent_episodes
        firsts = [agents[f"solver_{seat}"].get_infos()[0]["event_id"] for seat in range(3)]
        assert len(set(firsts)) == 1
        assert [agents[name].get_infos()[0]["event_id"].rpartition("/")[2] for name in agents] == [
            *["e0"] * 3,
            "e1",
            "e2",
        ]
        assert len({agent.get_return() for agent in agents.values()}) == 1


@pytest.mark.slow
def test_ppo_trains_one_iteration(config, tmp_path) -> None:
    """RLlib's own PPO with its default networks, on letters in and letters out."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, _temp_dir=f"/tmp/ray-{os.getpid()}", ignore_reinit_error=True)
    try:
        algorithm = config.training(train_batch_size=32, minibatch_size=16, num_epochs=1).build_algo()
        result = algorithm.train()
        algorithm.stop()
    finally:
        ray.shutdown()
    assert result["env_runners"]["num_episodes"] > 0
    assert all(np.isfinite(result["learners"][role]["total_loss"]) for role in REPLIES)
