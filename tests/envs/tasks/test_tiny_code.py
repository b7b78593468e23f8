"""Generated functions: gold programs are right, parts never overlap, and programs are judged by what they do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import srpo_envs
from srpo_envs.parsing import Parsed
from srpo_envs.sandbox import Sandbox
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.tiny_code import (
    HIDDEN_INPUTS,
    LEVELS,
    SHOWN_INPUT,
    WORDS,
    TinyCode,
    _run_on_hidden_inputs,
    apply_steps,
    write_program,
    write_question,
)

steps = st.lists(st.tuples(st.sampled_from(list(WORDS)), st.integers(2, 9)), min_size=1, max_size=5)

PLUS_3_TIMES_2 = Task("by-hand", "", "", {"steps": [("plus", 3), ("times", 2)]})


@pytest.fixture(autouse=True)
def nothing_ran_yet():
    _run_on_hidden_inputs.cache_clear()


def test_a_question_and_its_program_by_hand():
    # f(4) = (4 + 3) * 2
    assert write_question([("plus", 3), ("times", 2)]) == "Write f(x): plus 3, times 2. f(4)=14"
    assert write_program([("plus", 3), ("over", 2)]) == "def f(x):\n    x += 3\n    x //= 2\n    return x"


@given(steps, st.integers(-100, 100))
def test_a_program_does_what_its_steps_say(chosen, value):
    scope: dict = {}
    exec(write_program(chosen), scope)  # written by the test, of words and digits
    assert scope["f"](value) == apply_steps(chosen, value)


@pytest.mark.parametrize("level", LEVELS)
def test_parts_never_overlap_whatever_the_seed(level):
    train = TinyCode(level=level, size=300, seed=1)
    test = TinyCode(level=level, split="test", size=60, seed=2)
    questions = [{tasks.task(index).question for index in range(tasks.num_tasks)} for tasks in (train, test)]
    assert not questions[0] & questions[1]
    assert all(len(train.task(index).info["steps"]) == LEVELS[level] for index in range(9))


def test_the_example_is_no_hidden_test():
    assert SHOWN_INPUT not in HIDDEN_INPUTS
    numbers = re.findall(r"f\((\d+)\)=", TinyCode().task(0).question)
    assert numbers == [str(SHOWN_INPUT)]


@pytest.mark.usefixtures("runs_programs")
@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("def f(x):\n    x += 3\n    x *= 2\n    return x", 1.0),
        ("f = lambda x: 2 * x + 6", 1.0),
        ("def f(x):\n    return 2 * x + 5", 0.0),
        ("def f(x):\n    return 14", 0.0),  # right on the example
        ("def f(x):\n    return 2 * x + 6 if x < 25 else 0", 0.0),  # wrong on the last hidden input
        ("def g(x):\n    return 2 * x + 6", 0.0),
        ("def f(x):\n    x += 3\n    x *= 2", 0.0),
        ("def f(x):\n    return str(2 * x + 6)", 0.0),
        ("def f(x):", 0.0),
        ("import os\nos._exit(0)", 0.0),
    ],
)
def test_a_program_is_judged_by_what_it_does(program, reward):
    assert TinyCode().grade(PLUS_3_TIMES_2, program) == reward


@pytest.mark.usefixtures("runs_programs")
def test_a_program_runs_once_for_all_tasks(monkeypatch):
    opened: list[str] = []
    session = Sandbox.session
    monkeypatch.setattr(
        Sandbox, "session", lambda self, source, limits: opened.append(source) or session(self, source, limits)
    )
    tasks = TinyCode(level=1)
    rewards = [tasks.grade(tasks.task(index), "def f(x):\n    return x - 8") for index in range(300)]
    assert len(opened) == 1
    assert rewards == [float(tasks.task(index).info["steps"] == [("minus", 8)]) for index in range(300)]
    assert 0 < sum(rewards) < 300


@pytest.mark.usefixtures("runs_programs")
def test_a_gold_program_earns_1():
    tasks = TinyCode(level=3)
    for index in range(8):
        task = tasks.task(index)
        assert tasks.parse_answer(f"```python\n{task.gold}\n```") == Parsed(task.gold)
        assert tasks.grade(task, task.gold) == 1.0


@pytest.mark.usefixtures("runs_programs")
def test_every_reply_has_a_line_of_its_own():
    env = srpo_envs.make("TinyCodeEvalOpt-v0")
    active = env.reset(seed=0)
    active = env.step(active.outputs(["```python\ndef f(x):\n    x += 3\n    return x\n```"])).next
    assert active.members[0].prompt.endswith("\n[1] def f(x): x += 3 return x\nEvaluate.")
    active = env.step(active.outputs(["nothing"])).next
    assert active.members[0].prompt.endswith("\n[1] def f(x): x += 3 return x\nmalformed\nSolve.")

    env = srpo_envs.make("TinyCodeOrchestratorWorkers-v0")
    active = env.reset(seed=0)
    active = env.step(active.outputs(["SUBTASK 1: plus 3\nSUBTASK 2: mod 5"])).next
    assert [member.prompt for member in active.members] == ["\nplus 3\nWork.", "\nmod 5\nWork."]
    active = env.step(active.outputs(["x += 3", ""])).next
    assert active.members[0].prompt.endswith("\nplus 3\nmod 5\n[1] x += 3\n[2] malformed\nCombine.")


@pytest.mark.parametrize("kwargs", [{"level": 9}, {"split": "dev"}, {"size": 0}])
def test_arguments_that_mean_nothing_are_refused(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        TinyCode(**kwargs)
