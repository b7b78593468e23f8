"""Programming problems: solutions earn 1, tests stay hidden, and a broken sandbox is no wrong answer."""

from __future__ import annotations

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import srpo_envs
from srpo_envs.errors import ConfigError, DatasetError, SandboxError, SurroundingsError, UnreadableGoldError
from srpo_envs.grading.code import CallCase, CheckCase, CodeTests, ScriptCase
from srpo_envs.replay import branch, replay
from srpo_envs.sandbox import Sandbox, shared
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.code_formats import CODE_SETS
from srpo_envs.tasks.programs import Programs, _score, pack_tests, unpack_tests

DATA = Path(os.environ.get("SRPO_DATA") or Path(__file__).parents[4] / "shared" / "data")
HUMAN_EVAL = DATA / "code" / "HumanEval.jsonl.gz"

DOUBLE = {"question": "Double a number.", "tests": [{"input": str(n), "output": str(2 * n)} for n in (1, 200, 30, 4)]}
RIGHT, ONLY_ONE = "print(2 * int(input()))", "print(2 if input() == '1' else 0)"


@pytest.fixture(autouse=True)
def nothing_is_judged_yet():
    _score.cache_clear()


def programs(tmp_path, *rows, **kwargs) -> Programs:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Programs("custom", path=path, **kwargs)


@pytest.mark.usefixtures("runs_programs")
def test_every_canonical_solution_of_human_eval_earns_1(boxed):
    if not HUMAN_EVAL.exists():
        pytest.skip(f"{HUMAN_EVAL.name} is not there: set SRPO_DATA")
    tasks = Programs("humaneval", path=HUMAN_EVAL)
    problems = [tasks.task(index) for index in range(tasks.num_tasks)]
    with ThreadPoolExecutor(boxed.num_workers) as threads:
        scores = list(threads.map(lambda task: tasks.grade(task, task.gold), problems))
    assert [task.info["task_id"] for task, score in zip(problems, scores, strict=True) if score != 1.0] == []
    assert len(scores) == 164


def test_no_question_of_human_eval_holds_a_hidden_test():
    if not HUMAN_EVAL.exists():
        pytest.skip(f"{HUMAN_EVAL.name} is not there: set SRPO_DATA")
    tasks = Programs("humaneval", path=HUMAN_EVAL)
    with gzip.open(HUMAN_EVAL, "rt", encoding="utf-8") as file:
        for index, row in enumerate(map(json.loads, file)):
            asserts = [line for line in row["test"].splitlines() if line.strip().startswith("assert")]
            question = tasks.task(index).question
            assert row["prompt"].strip() in question
            assert not any(line.strip() in question for line in asserts)


@pytest.mark.usefixtures("runs_programs")
def test_every_shipped_problem_is_earned_by_its_solution_alone():
    tasks = Programs()
    assert [tasks.task(index).info["num_tests"] >= 3 for index in range(tasks.num_tasks)] == [True] * 10
    for index in range(tasks.num_tasks):
        task, other = tasks.task(index), tasks.task((index + 1) % tasks.num_tasks)
        assert [tasks.grade(task, program) for program in (task.gold, other.gold, "pass")] == [1.0, 0.0, 0.0]


@pytest.mark.usefixtures("runs_programs")
def test_the_reward_is_all_or_the_share_of_the_tests(tmp_path):
    for kwargs, expected in [
        ({}, 0.0),
        ({"reward": "fraction"}, 0.25),
        ({"max_tests": 1}, 0.0),  # the longest input is 200
        ({"max_tests": 2, "reward": "fraction"}, 0.0),
        ({"max_tests": 4, "reward": "fraction"}, 0.25),
    ]:
        tasks = programs(tmp_path, DOUBLE, **kwargs)
        task = tasks.task(0)
        assert (tasks.grade(task, ONLY_ONE), tasks.grade(task, RIGHT)) == (expected, 1.0), kwargs


@pytest.mark.usefixtures("runs_programs")
def test_equal_programs_of_a_problem_run_once(tmp_path, monkeypatch):
    opened: list[str] = []
    session = Sandbox.session
    monkeypatch.setattr(Sandbox, "session", lambda self, *args: opened.append(args[0]) or session(self, *args))
    tasks = programs(tmp_path, DOUBLE, DOUBLE | {"question": "Triple.", "tests": [{"input": "1", "output": "3"}]})
    scores = [tasks.grade(tasks.task(index), text) for index in (0, 1, 0, 1) for text in (RIGHT, ONLY_ONE)]
    assert scores == [1.0, 0.0, 0.0, 0.0] * 2
    assert opened == [RIGHT, ONLY_ONE] * 2


@pytest.mark.usefixtures("runs_programs")
def test_a_tolerance_and_limits_hold_for_every_test(tmp_path):
    row = {"question": "Print a third.", "tests": [{"input": "1", "output": "0.3333"}]}
    for tolerance, expected in [(None, 0.0), (1e-6, 0.0), (1e-3, 1.0)]:
        tasks = programs(tmp_path, row, tolerance=tolerance)
        assert tasks.grade(tasks.task(0), "print(1 / 3)") == expected
    tasks = programs(tmp_path, DOUBLE, test_limits={"output_bytes": 100})
    assert tasks.grade(tasks.task(0), f"{RIGHT}; print(' ' * 1000)") == 0.0
    tasks = programs(tmp_path, DOUBLE)
    assert tasks.grade(tasks.task(0), f"{RIGHT}; print(' ' * 1000)") == 1.0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reward": "some"}, "'all' or 'fraction'"),
        ({"max_tests": 0}, "max_tests"),
        ({"test_limits": {"cpu": 1}}, "no limit 'cpu'; did you mean 'cpu_s'"),
        ({"test_limits": {"cpu_s": 0}}, "cpu_s must be above 0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        srpo_envs.make("CodeSingleAgent-v0", **kwargs)


def test_a_row_whose_tests_cannot_be_used_is_named_and_can_be_left_out(tmp_path):
    rows = [DOUBLE, DOUBLE | {"question": "Halve.", "tests": "["}]
    with pytest.raises(UnreadableGoldError, match=r"set\.jsonl, row 2: field 'tests' holds a text that is no JSON"):
        programs(tmp_path, *rows)
    tasks = programs(tmp_path, *rows, skip_unreadable=True)
    assert (tasks.num_tasks, len(tasks.report.skipped)) == (1, 1)
    with pytest.raises(DatasetError, match=r"row 1: no question"):
        programs(tmp_path, {"tests": DOUBLE["tests"]}, skip_unreadable=True)


@pytest.mark.parametrize(
    "tests",
    [
        CodeTests(cases=(ScriptCase(stdin="1\n", stdout="\ud800"), ScriptCase(stdin="", stdout=""))),
        CodeTests(cases=(CallCase(args=(1, [2.5], {"a": None}), kwargs={"b": True}, expected="x"),), function="f"),
        CodeTests(cases=(CheckCase(code="assert f(1)"),), function="f", support="import math", tolerance=0.5),
    ],
)
def test_tests_come_out_as_they_were_packed(tests):
    assert unpack_tests(pack_tests(tests)) == tests


@pytest.mark.usefixtures("runs_programs")
def test_records_hold_no_test_and_replay_needs_no_sandbox(tmp_path, monkeypatch):
    secret = {"question": "Echo.", "tests": [{"input": "sesame", "output": "sesame"}], "solutions": ["print(input())"]}
    programs(tmp_path, secret)
    env = srpo_envs.make("CodeEvalOpt-v0", dataset="custom", path=str(tmp_path / "set.jsonl"))
    active = env.reset(seed=0)
    for texts in (["No program."], ["\\boxed{Incorrect}"], ["```python\nprint(input())\n```"], ["\\boxed{Correct}"]):
        assert "sesame" not in active.members[0].prompt
        active = env.step(active.outputs(texts)).next
    episode = env.episode
    assert (episode.reward, episode.penalty, episode.info["answer"]) == (1.0, 0.1, "print(input())")
    assert "sesame" not in repr(episode)
    monkeypatch.setattr(Sandbox, "session", None)
    assert replay(episode) == episode


@pytest.mark.usefixtures("runs_programs")
def test_an_episode_that_goes_on_from_a_record_finds_its_tests_again(tmp_path):
    programs(tmp_path, DOUBLE)
    env = srpo_envs.make("CodeEvalOpt-v0", dataset="custom", path=str(tmp_path / "set.jsonl"))
    active = env.reset(seed=0)
    active = env.step(active.outputs([f"```python\n{ONLY_ONE}\n```"])).next
    env.step(active.outputs(["\\boxed{Correct}"]))
    other = branch(env.episode, 1)
    active = other.step(other.pending.outputs(["\\boxed{Incorrect}"])).next
    active = other.step(active.outputs([f"```python\n{RIGHT}\n```"])).next
    other.step(active.outputs(["\\boxed{Correct}"]))
    assert (env.episode.reward, other.episode.reward) == (0.0, 1.0)
    with pytest.raises(DatasetError, match="'unknown' is not in 'code-custom'"):
        env.tasks.grade(Task("unknown", "", ""), RIGHT)


@pytest.mark.usefixtures("runs_programs")
def test_a_sandbox_that_breaks_is_a_broken_surrounding_and_no_wrong_answer(monkeypatch):
    env = srpo_envs.make("CodeSingleAgent-v0")
    active = env.reset(seed=0)

    def break_down(self, *args):
        raise SandboxError("the box broke")

    monkeypatch.setattr(Sandbox, "session", break_down)
    with pytest.raises(SurroundingsError, match="the box broke"):
        env.step(active.outputs(["```python\npass\n```"]))


def test_without_namespaces_the_error_names_the_argument_and_only_the_argument_weakens(monkeypatch):
    def find_nothing():
        raise SandboxError("bubblewrap is not installed")

    monkeypatch.setattr(shared, "_sandboxes", {})
    monkeypatch.setattr("srpo_envs.sandbox.sandbox.find_bubblewrap", find_nothing)
    tasks = Programs()
    with pytest.raises(SandboxError, match=r"bubblewrap is not installed.*isolation='rlimits'"):
        tasks.grade(tasks.task(0), tasks.task(0).gold)
    assert shared._sandboxes == {}
    weaker = Programs(isolation="rlimits")
    try:
        assert weaker.grade(weaker.task(0), weaker.task(0).gold) == 1.0
    except SandboxError as error:
        pytest.skip(f"rlimits are refused here: {error}")
    finally:
        for sandbox in shared._sandboxes.values():
            sandbox.close()


@pytest.mark.usefixtures("runs_programs")
def test_environments_of_a_process_share_one_sandbox(boxed):
    made = shared.open_sandbox("namespaces")
    assert made is shared.open_sandbox("namespaces") is boxed


@pytest.mark.parametrize("text", ["print(1)", "```\nprint(1)\n```", "```python\nprint(1)", "```python\n\n```"])
def test_a_response_without_a_whole_fenced_program_is_malformed(text):
    env = srpo_envs.make("CodeSingleAgent-v0")
    result = env.step(env.reset(seed=0).outputs([text]))
    assert not result.event.members[0].is_valid
    assert (env.episode.reward, env.episode.penalty) == (0.0, 0.1)


def test_every_set_of_the_table_says_where_it_is():
    assert [name for name, spec in CODE_SETS.items() if not (spec.shipped or (spec.hub_id and spec.splits))] == []
