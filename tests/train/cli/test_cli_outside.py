"""`srpo eval` and `srpo play` with answers that come from outside: an endpoint, or anyone's own function."""

from __future__ import annotations

import json
import sys
import types

import pytest
from json_server import Answer, JsonServer
from typer.testing import CliRunner, Result

from srpo_train.cli import app
from srpo_train.evaluation import read_results

TEAM = "ArithmeticSolverVerifier-v0"


def srpo(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})


def chat(asked) -> Answer:
    prompt = asked.body["messages"][0]["content"]
    text = "<verify>approve</verify>" if "<verify>" in prompt else "\\boxed{4}"
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return Answer({"choices": [choice], "usage": {"completion_tokens": 3}})


def test_eval_scores_an_endpoint(tmp_path) -> None:
    options = ("--env", TEAM, "--num-tasks", 2, "--temperature", 0.5, "--out", tmp_path, "--json")
    with JsonServer(chat) as server:
        result = srpo("eval", f"{server.url}/v1?model=toy", *options)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["benchmarks"][TEAM]["num_samples"] == 2
        tasks = read_results(tmp_path).benchmarks[TEAM].seeds[0].per_task
        assert sum(task.num_tokens for task in tasks) == 3 * len(server.asked)
        assert {asked.body["temperature"] for asked in server.asked} == {0.5}


def test_an_endpoint_is_watched_while_it_plays() -> None:
    with JsonServer(chat) as server:
        result = srpo("play", TEAM, "--policy", f"{server.url}/v1?model=toy")
    assert result.exit_code == 0, result.output
    assert "solver_1 (3 tokens)" in result.stdout


def test_an_endpoint_that_is_not_there_ends_in_one_line(tmp_path) -> None:
    result = srpo("eval", "http://127.0.0.1:9/v1", "--env", TEAM, "--out", tmp_path)
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr
    assert "Traceback" not in result.output


def test_eval_scores_a_function(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    module = types.ModuleType("my_agents")
    module.solve = lambda member: "<verify>approve</verify>" if member.role == "verifier" else "\\boxed{4}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_agents", module)
    result = srpo("eval", "agent:my_agents:solve", "--env", TEAM, "--num-tasks", 2, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["benchmarks"][TEAM]["num_samples"] == 2


@pytest.mark.parametrize(
    "name", ["agent:no_such_module:solve", "agent:json:no_such_function", "agent:json", "agent::x"]
)
def test_an_agent_that_cannot_be_found_is_misuse(name: str, tmp_path) -> None:
    result = srpo("eval", name, "--env", TEAM, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert "expected agent:module:function" in result.stderr
