"""verifiers' own evaluation, played against an OpenAI-compatible endpoint of this test."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from json_server import Answer, JsonServer
from team_script import REPLIES, reply_to_chat

pytest.importorskip("verifiers.v1")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"


@pytest.fixture(autouse=True)
def environment_module(monkeypatch):
    """verifiers imports an environment by its module's name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield "arithmetic_team"
    sys.modules.pop("arithmetic_team", None)


@pytest.fixture
def endpoint():
    server = JsonServer(lambda asked: Answer(reply_to_chat(asked.body)))
    yield server
    server.stop()


def evaluate(endpoint: JsonServer, out: Path, num_tasks: int = 2):
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    env = {"taskset": {"id": "arithmetic_team", "num_tasks": num_tasks}, "max_concurrent_agents": None}
    config = EvalConfig.model_validate(
        {
            "env": {**env, **{role: {"model": role} for role in REPLIES}},
            "client": {"base_url": f"{endpoint.url}/v1"},
            "push": False,
            "rich": None,
            "output_dir": str(out),
        }
    )
    return asyncio.run(run_eval(config))


def test_their_evaluation_plays_our_events(endpoint, tmp_path) -> None:
    episodes = evaluate(endpoint, tmp_path)
    assert [episode.ok for episode in episodes] == [True, True]
    for episode in episodes:
        members = sorted(
            (trace.task.data.event_id.rpartition("/")[2], trace.task.data.member_index, trace.agent.name)
            for trace in episode.traces
        )
        assert members == [
            ("e0", 0, "solver"),
            ("e0", 1, "solver"),
            ("e0", 2, "solver"),
            ("e1", 0, "verifier"),
            ("e2", 0, "aggregator"),
        ]
        assert len({trace.task.data.episode_id for trace in episode.traces}) == 1
        assert [trace.task.data.cardinality for trace in episode.traces].count(3) == 3
        assert len({trace.reward for trace in episode.traces}) == 1
    assert {asked.body["max_tokens"] for asked in endpoint.asked if asked.body["model"] == "verifier"} == {8}


def test_what_verifiers_stores_names_the_events(endpoint, tmp_path) -> None:
    evaluate(endpoint, tmp_path, num_tasks=1)
    (stored,) = tmp_path.rglob("traces.jsonl")
    text = stored.read_text(encoding="utf-8")
    assert all(f"/e{number}" in text for number in range(3))
    assert all(json.loads(line) for line in text.splitlines())


def test_bad_text_is_data_and_is_paid_its_penalty(endpoint, tmp_path) -> None:
    def answer(asked):
        reply = reply_to_chat(asked.body)
        if asked.body["model"] == "solver":
            reply["choices"][0]["message"]["content"] = "no box"
        return Answer(reply)

    endpoint.answer = answer
    (episode,) = evaluate(endpoint, tmp_path, num_tasks=1)
    assert episode.ok
    solvers = [trace for trace in episode.traces if trace.agent.name == "solver"]
    assert {trace.info["malformed_reason"] for trace in solvers} == {"no boxed answer"}
    others = [trace for trace in episode.traces if trace.agent.name != "solver"]
    assert {round(trace.reward + 0.3, 6) for trace in solvers} == {trace.reward for trace in others}


def test_a_failed_member_fails_the_episode_and_no_text_stands_in(endpoint, tmp_path) -> None:
    endpoint.answer = lambda asked: (
        Answer({"error": {"message": "gone"}}, status=400)
        if asked.body["model"] == "verifier"
        else Answer(reply_to_chat(asked.body))
    )
    (episode,) = evaluate(endpoint, tmp_path, num_tasks=1)
    assert not episode.ok
    assert any("the agent run failed" in error.message for error in episode.errors)
    assert not any(trace.rewards for trace in episode.traces)


def test_each_role_is_a_seat(environment_module) -> None:
    from verifiers.v1.utils.loaders import env_config_type

    seats = env_config_type(environment_module).model_fields
    assert set(REPLIES) <= set(seats)
