from __future__ import annotations

import pytest
from team_script import SEED, make_team, played, reply_of, story

import srpo_envs

pytest.importorskip("torchrl")
tensordict = pytest.importorskip("tensordict")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*PettingZoo in TorchRL.*:UserWarning"),
]


@pytest.fixture
def env():
    from srpo_envs.integrations.torchrl import TorchRLSetEnv

    return TorchRLSetEnv(make_team())


def scripted(td):
    for agent in make_team().possible_agents:
        td[agent, "action"] = reply_of(agent)
    return td


def test_torchrl_finds_that_the_data_are_those_of_the_specs(env) -> None:
    from torchrl.envs.utils import check_env_specs

    check_env_specs(env)


def test_a_rollout_is_the_episode(env) -> None:
    env.set_seed(SEED)
    rollout = env.rollout(20, policy=scripted)
    expected = played()
    assert list(rollout["event_id"]) == [event.event_id for event in expected.events]
    assert list(rollout["state_id"]) == [event.state_id for event in expected.events]
    assert rollout["cardinality"].ravel().tolist() == [3, 1, 1]
    assert rollout["next", "reward"].ravel().tolist() == [0.0, 0.0, 1.0]
    assert rollout["next", "terminated"].ravel().tolist() == [False, False, True]
    assert rollout["verifier_0", "active"].ravel().tolist() == [False, True, False]
    assert rollout["verifier_0", "prompt"][0] == ""
    assert story(env.set_env.episode) == story(expected)


def test_bad_text_is_data_and_its_reason_is_beside_it(env) -> None:
    env.set_seed(SEED)
    step = scripted(env.reset())
    step["solver_1", "action"] = "\udcff no box \x00"
    after = env.step(step)["next"]
    assert after["solver_1", "malformed"] == "no boxed answer"
    assert after["solver_0", "malformed"] == ""
    assert after["reward"].item() == pytest.approx(-0.1)


def test_a_collector_gathers_whole_episodes_one_after_another() -> None:
    from torchrl.collectors import Collector

    from srpo_envs.integrations.torchrl import TorchRLSetEnv

    collector = Collector(lambda: TorchRLSetEnv(make_team()), scripted, frames_per_batch=6, total_frames=12)
    try:
        batches = list(collector)
    finally:
        collector.shutdown()
    assert len(batches) == 2
    for batch in batches:
        assert [event_id.rpartition("/")[2] for event_id in batch["event_id"]] == ["e0", "e1", "e2"] * 2
        assert len({event_id.partition("/")[0] for event_id in batch["event_id"]}) == 2


def test_the_wrapper_of_torchrl_does_not_know_texts() -> None:
    """When this fails, TorchRL has learned to: look whether the adapter is still needed."""
    from torchrl.envs import PettingZooWrapper

    with pytest.raises(KeyError, match="FreeText"):
        PettingZooWrapper(srpo_envs.ParallelSetEnv(make_team()))
