"""Our server, OpenEnv's own client."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from team_script import ENV_ID, REPLIES, SEED, make_team, played, story

pytest.importorskip("openenv")
uvicorn = pytest.importorskip("uvicorn")
pytestmark = pytest.mark.filterwarnings("ignore")


@contextlib.contextmanager
def serving(app: object) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    from srpo_envs.integrations.openenv import create_app

    with serving(create_app(ENV_ID, num_solvers=3)) as url:
        yield url


@pytest.fixture
def client(url: str):
    from openenv.core import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as client:
        yield client


def answer(observation: dict) -> dict:
    return {
        "event_id": observation["event_id"],
        "texts": [REPLIES[member["role"]] for member in observation["members"]],
    }


def test_their_client_plays_an_episode_event_by_event(client) -> None:
    result = client.reset(seed=SEED)
    seen, rewards = [], []
    while not result.done:
        seen.append((result.observation["event_id"], result.metadata["state_id"], len(result.observation["members"])))
        result = client.step(answer(result.observation))
        rewards.append(result.reward)
    expected = played()
    assert seen == [(event.event_id, event.state_id, event.cardinality) for event in expected.events]
    assert rewards == [event.reward for event in expected.events]
    assert result.metadata["outcome"]["correct"] is True
    assert (result.metadata["terminated"], result.metadata["truncated"]) == (True, False)
    state = client.state()
    assert (state["episode_id"], state["step_count"]) == (expected.episode_id, 3)


def test_prompts_and_limits_of_the_members_arrive(client) -> None:
    members = client.reset(seed=SEED).observation["members"]
    direct = make_team().reset(seed=SEED).members
    assert [(member["prompt"], member["agent"], member["max_new_tokens"]) for member in members] == [
        (member.prompt, member.agent, member.max_new_tokens) for member in direct
    ]


def test_an_event_is_never_played_in_part_or_twice(client) -> None:
    first = client.reset(seed=SEED)
    action = answer(first.observation)
    with pytest.raises(RuntimeError, match="expected 3 members, got 2"):
        client.step({**action, "texts": action["texts"][:2]})
    second = client.step(action)  # nothing had changed
    with pytest.raises(RuntimeError, match="is pending"):
        client.step(action)
    assert client.state()["step_count"] == 1
    assert client.step(answer(second.observation)).observation["event_id"].endswith("/e2")


def test_bad_text_is_data(client) -> None:
    action = answer(client.reset(seed=SEED).observation)
    result = client.step({**action, "texts": ["no box", *action["texts"][1:]]})
    assert result.metadata["malformed"] == {"solver_0": "no boxed answer"}
    assert result.reward == pytest.approx(-0.1)


def test_sessions_have_environments_of_their_own(url: str, client) -> None:
    from openenv.core import GenericEnvClient

    client.reset(seed=SEED)
    with GenericEnvClient(base_url=url).sync() as other:
        assert other.reset(seed=SEED + 1).observation["event_id"] != ""
    assert client.state()["episode_id"] == played().episode_id


def test_options_reach_the_environment() -> None:
    from srpo_envs.integrations.openenv import OpenEnvSetEnv

    env = OpenEnvSetEnv(make_team())
    assert env.state.step_count == 0
    observation = env.reset(seed=SEED, episode_id="named", task_index=5)
    assert observation.event_id == "named/e0"
    assert env.state.task_id.endswith("/5")
    assert story(env.set_env.episode) == []
