"""`srpo eval` and `srpo play` with answers that come from outside: an endpoint, or anyone's own function."""

from __future__ import annotations

import csv
import json
import sys
import types

import pytest
from json_server import Answer, JsonServer
from typer.testing import CliRunner, Result

from srpo_train.cli import app
from srpo_train.engines.agent import AgentReply
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


def test_budget_curves_of_two_workflows_are_written_and_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    module = types.ModuleType("my_agents")
    asked = []

    def solve(member):
        asked.append(member)
        text = "<verify>approve</verify>" if member.role == "verifier" else "\\boxed{4}"
        return AgentReply(text=text, num_tokens=min(member.max_new_tokens, 4))

    module.solve = solve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_agents", module)
    command = (
        "budget-curve", "agent:my_agents:solve", "--env", TEAM, "--env", "ArithmeticSingleAgent-v0", "--label", "team",
        "--label", "[/]single", "--budgets", "16,20", "--num-tasks", 2, "--samples", 1, "--out", tmp_path,
    )  # fmt: skip
    result = srpo(*command)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "budget-curve.csv").read_text().splitlines()))
    assert [(row["method"], row["amount"], row["tokens_per_query"], row["out_of_budget_share"]) for row in rows] == [
        ("team", "16", "16.0", "1.0"),
        ("team", "20", "20.0", "0.0"),
        ("[/]single", "16", "4.0", "0.0"),
        ("[/]single", "20", "4.0", "0.0"),
    ]
    assert (tmp_path / "budget-curve.png").stat().st_size > 0
    num_asked = len(asked)
    assert srpo(*command).exit_code == 0
    assert len(asked) == num_asked  # everything was there


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--budgets", "a"), "expected whole numbers"),
        (("--budgets", "9", "--limit", "token"), "no limit 'token'"),
        (("--budgets", "9", "--label", "a", "--label", "b"), "--label: 2 given for 1 curves"),
        (("--budgets", "9", "--env", TEAM, "--label", "a", "--label", "a"), "would share the directory 'a'"),
        (("--budgets", "9", "--env", TEAM, "--label", "a b", "--label", "../a/b"), "would share the directory 'a-b'"),
        (("--budgets", "9", "--label", ".."), "no letter or digit to name its directory after"),
    ],
)
def test_a_budget_curve_that_cannot_be_is_misuse(changes, message, tmp_path) -> None:
    result = srpo("budget-curve", "agent:json:dumps", "--env", TEAM, *changes, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


@pytest.mark.parametrize(
    "name", ["agent:no_such_module:solve", "agent:json:no_such_function", "agent:json", "agent::x"]
)
def test_an_agent_that_cannot_be_found_is_misuse(name: str, tmp_path) -> None:
    result = srpo("eval", name, "--env", TEAM, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert "expected agent:module:function" in result.stderr
