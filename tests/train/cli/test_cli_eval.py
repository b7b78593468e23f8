"""`srpo eval` on benchmarks, `srpo compare` and `srpo benchmarks`, with agents of a few lines."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from srpo_envs.errors import ToolError
from srpo_train.cli import app
from srpo_train.evaluation import read_results

ENV = "MathSolverVerifier-v0"


def srpo(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def refused(*arguments: object) -> str:
    result = srpo(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of agents: one that is right on short questions, one that never is, one whose service is away."""
    module = types.ModuleType("some_agents")

    def say(member, answer) -> str:
        return "<verify>approve</verify>" if member.role == "verifier" else f"\\boxed{{{answer}}}"

    def away(member) -> str:
        if "9" in member.prompt:
            raise ToolError("service away")
        return say(member, 1)

    module.able = lambda member: say(member, 1 if "long" not in member.prompt else 2)  # type: ignore[attr-defined]
    module.unable = lambda member: say(member, 3)  # type: ignore[attr-defined]
    module.away = away  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_agents", module)
    return module


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    """Two small files as benchmarks: a third of each is long."""
    options: list[object] = ["--env", ENV, "--arg", "num_solvers=2", "--benchmarks", "aime24,amc23"]
    for name, size in (("aime24", 30), ("amc23", 6)):
        path = tmp_path / f"{name}.jsonl"
        rows = [{"problem": f"{'a long one' if n % 3 == 0 else ''} {n} - {n - 1}", "answer": "1"} for n in range(size)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options += ["--data", f"{name}={path}"]
    return options


def test_benchmarks_are_evaluated_with_macro_average_counts_and_digests(files, tmp_path: Path) -> None:
    out = tmp_path / "able"
    result = srpo("eval", "agent:some_agents:able", *files, "--samples", 4, "--seeds", "0,3", "--out", out)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "agent:some_agents:able on MathSolverVerifier-v0, 4 samples a task, seeds 0, 3" in text
    assert "aime24 30 66.7 ± 0.0" in text
    assert "macro average 66.7 ± 0.0" in text
    assert "aime24: 30 tasks, as published; digest" in text
    assert "amc23: the set has 6 tasks, the published one 40" in text
    assert "unbiased Pass@k, % 2 aime24 66.7" in text
    results = read_results(out)
    assert (results.method, results.samples) == ("agent:some_agents:able", 4)
    assert (results.benchmarks["amc23"].set_size, results.benchmarks["amc23"].expected_tasks) == (6, 40)
    assert sorted(path.name for path in out.iterdir()) == [".lock", "aime24", "amc23", "plan.json", "results.json"]


def test_a_wrong_number_of_tasks_is_an_error_if_one_is_strict(files, tmp_path: Path) -> None:
    result = srpo("eval", "agent:some_agents:able", *files, "--out", tmp_path / "e", "--strict")
    assert result.exit_code == 1
    assert "benchmark 'amc23': 6 tasks, the published set has 40" in result.stderr
    assert not (tmp_path / "e").exists()


def test_the_default_directory_takes_more_seeds_and_benchmarks_and_no_other_plan(
    files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for changes in (["--seeds", 0], ["--seeds", 1], ["--samples", 2], ["--limit", 3], ["--temperature", 0]):
        assert srpo("eval", "agent:some_agents:able", *files, *changes).exit_code == 0
    names = sorted(path.name for path in (tmp_path / "evals").iterdir())
    assert len(names) == 4
    assert all(name.startswith(f"agent-some_agents-able-{ENV}-k") for name in names)
    assert sorted(len(read_results(tmp_path / "evals" / n).benchmarks["amc23"].seeds) for n in names) == [1, 1, 1, 2]


def test_lost_samples_end_the_command_with_1_and_are_told(files, tmp_path: Path) -> None:
    command = ["eval", "agent:some_agents:away", *files, "--out", tmp_path / "e"]
    result = srpo(*command)
    assert result.exit_code == 1
    assert "aime24: 5 samples lost and in no score; the same command tries them again" in result.stdout
    assert "5 x the engine gave up member_index [0, 1] (agent 'policy': ToolError: service away)" in result.stdout
    assert "Traceback" not in result.output
    assert result.stdout == srpo(*command).stdout


def test_another_evaluation_is_refused(files, tmp_path: Path) -> None:
    command = ["eval", "agent:some_agents:able", *files, "--out", tmp_path / "e"]
    assert srpo(*command).exit_code == 0
    assert "whose samples is 1, not 2; choose another --out" in refused(*command, "--samples", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmarks", "aime23"], "no benchmark 'aime23'; did you mean"),
        (["--benchmarks", "nq"], "benchmark 'nq' does not fit 'MathSolverVerifier-v0'"),
        (["--benchmarks", "aime24", "--data", "amc23=x"], "--data amc23=x: 'amc23' is not among --benchmarks"),
        (["--benchmarks", "aime24", "--data", "aime24"], "expected NAME=FILE"),
        (["--benchmarks", "aime24", "--seeds", "a"], "--seeds a: expected whole numbers"),
        (["--engine", "llama"], "--engine llama: expected recipe, transformers or vllm"),
    ],
)
def test_misuse_ends_in_one_line(arguments, message, tmp_path: Path) -> None:
    assert message in refused("eval", "agent:some_agents:able", "--env", ENV, *arguments, "--out", tmp_path / "e")


def test_a_missing_or_wrong_file_is_told(tmp_path: Path) -> None:
    command = ["eval", "agent:some_agents:able", "--env", ENV, "--benchmarks", "aime24"]
    result = srpo(*command, "--data", f"aime24={tmp_path}/none.jsonl")
    assert (result.exit_code, "no data file at" in result.stderr) == (1, True)
    (tmp_path / "other.jsonl").write_text('{"text": "x"}\n')
    result = srpo(*command, "--data", f"aime24={tmp_path}/other.jsonl")
    assert (result.exit_code, "no question" in result.stderr) == (1, True)


def test_samples_replay_and_pass_the_audit(files, tmp_path: Path) -> None:
    assert srpo("eval", "agent:some_agents:able", *files, "--limit", 2, "--out", tmp_path / "e").exit_code == 0
    audit = srpo("audit", tmp_path / "e", "--replay")
    assert audit.exit_code == 0, audit.output
    assert "4 episodes replayed" in audit.stdout
    name = read_results(tmp_path / "e").benchmarks["amc23"].seeds[0].per_task[0].task_id
    replay = srpo("replay", tmp_path / "e", "--episode", f"amc23/seed-0/{name}/k0")
    assert "the replay is identical to the record" in replay.stdout


def test_two_evaluations_are_compared(files, tmp_path: Path) -> None:
    for agent in ("able", "unable"):
        srpo("eval", f"agent:some_agents:{agent}", *files, "--out", tmp_path / agent)
    result = srpo("compare", tmp_path / "unable", tmp_path / "able")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "aime24 30 Avg@1 0.0 66.7 +66.7" in text
    assert "McNemar" in text
    assert "macro 36 Avg@1 0.0 66.7 +66.7" in text
    assert "agent:some_agents:able, no budget" in result.stdout
    found = json.loads(srpo("compare", tmp_path / "unable", tmp_path / "able", "--json").stdout)
    assert found[0]["pass_at_k"]["p_value"] == pytest.approx(2 / 2**20)
    srpo("eval", "agent:some_agents:able", *files, "--limit", 2, "--out", tmp_path / "few")
    assert "evaluated on other tasks" in refused("compare", tmp_path / "able", tmp_path / "few")
    assert srpo("compare", tmp_path / "able", tmp_path).exit_code == 1


# --- srpo benchmarks ----------------------------------------------------------------------------------------------


def test_the_table_names_every_benchmark() -> None:
    from srpo_envs.benchmarks import BENCHMARKS

    result = srpo("benchmarks")
    assert result.exit_code == 0
    for benchmark in BENCHMARKS.values():
        assert f"{benchmark.name} " in result.stdout
        assert f"{benchmark.counts[0]:,}" in result.stdout


def test_a_file_is_held_against_what_was_published(files, tmp_path: Path) -> None:
    good = srpo("benchmarks", "--check", "aime24", "--path", tmp_path / "aime24.jsonl")
    assert good.exit_code == 0
    assert "aime24: 30 tasks, as published" in good.stdout
    assert len(good.stdout.split("digest ")[1].split()[0]) == 64
    bad = srpo("benchmarks", "--check", "amc23", "--path", tmp_path / "amc23.jsonl")
    assert bad.exit_code == 1
    assert "amc23: 6 tasks, expected 40" in bad.stdout
    assert "say which benchmark it holds" in refused("benchmarks", "--path", "x.jsonl")


def test_an_evaluation_that_ends_early_says_what_is_kept(
    files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import srpo_train.evaluation.harness as harness

    def interrupt(self, ended) -> None:
        raise KeyboardInterrupt

    command = ["eval", "agent:some_agents:able", *files, "--out", tmp_path / "e"]
    with monkeypatch.context() as patch:
        patch.setattr(harness._Pair, "_take", interrupt)
        result = srpo(*command)
    assert result.exit_code == 130
    assert f"what was drawn is kept in {tmp_path}/e; the same command goes on from there" in result.stderr
    assert srpo(*command).exit_code == 0
