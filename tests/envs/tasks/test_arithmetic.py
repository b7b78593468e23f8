"""Embedded arithmetic: questions say what their gold answers, and train and test never share one."""

from __future__ import annotations

import re

import pytest
from factories import boxed, play
from hypothesis import given
from hypothesis import strategies as st

import srpo_envs
from srpo_envs.schedule import Reply
from srpo_envs.tasks.arithmetic import LEVELS, Arithmetic, partial_results, write_question
from srpo_envs.tasks.generated import split_of
from srpo_envs.workflows.single_agent import SingleAgent

QUESTION = re.compile(r"Compute (\d)((?:[+*-]\d)+) from left to right, mod 10\.")


def work_out(question: str) -> str:
    """Read a question as a person would."""
    start, chain = QUESTION.fullmatch(question).groups()
    value = int(start)
    for operator, digit in re.findall(r"([+*-])(\d)", chain):
        value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[operator]
    return str(value % 10)  # the remainder of the end is the end of the remainders


def test_a_chain_by_hand():
    # 3*7 = 21 -> 1; 1-4 = -3 -> 7; 7+8 = 15 -> 5
    steps = [("*", 7), ("-", 4), ("+", 8)]
    assert write_question(3, steps) == "Compute 3*7-4+8 from left to right, mod 10."
    assert partial_results(3, steps) == [1, 7, 5]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_gold_is_the_answer_of_its_question_and_grades_right(level, split):
    tasks = Arithmetic(level=level, split=split)
    fewest, most = LEVELS[level]
    lengths = set()
    for index in range(60):
        task = tasks.task(index)
        assert task.gold == work_out(task.question)
        assert (tasks.grade(task, task.gold), tasks.grade(task, str((int(task.gold) + 1) % 10))) == (1.0, 0.0)
        lengths.add(len(QUESTION.fullmatch(task.question).group(2)) // 2)
    assert lengths == set(range(fewest, most + 1))


@given(level=st.sampled_from(sorted(LEVELS)), index=st.integers(0, 10**6), seed=st.integers(0, 2**32))
def test_train_and_test_never_share_a_question_whatever_the_seed(level, index, seed):
    for split in ("train", "test"):
        assert split_of(Arithmetic(level=level, split=split, seed=seed).task(index).question) == split


def test_a_tenth_of_the_questions_is_held_out():
    chains = [(start, [("+", a), ("*", b)]) for start in range(1, 10) for a in range(1, 10) for b in range(1, 10)]
    held_out = sum(split_of(write_question(*chain)) == "test" for chain in chains)
    assert 45 <= held_out <= 101  # 72.9 expected of 729, within 3.5 standard deviations


def test_tasks_are_the_same_every_time_and_other_seeds_give_others():
    first = [Arithmetic().task(index) for index in range(20)]
    assert [Arithmetic().task(index) for index in range(20)] == first
    assert [Arithmetic(seed=1).task(index) for index in range(20)] != first
    assert first[17].task_id == "arithmetic-l2-train/17"


def test_only_answers_are_committed():
    replies = [
        Reply("long \\boxed{4}", "4", "", "solver_0", "solver", 0),
        Reply("none", None, "no boxed answer", "solver_1", "solver", 1),
        Reply("<verify>reject</verify>", "reject", "", "verifier_0", "verifier", 0),
        Reply("hm", None, "no verdict tag", "verifier_0", "verifier", 0),
    ]
    assert Arithmetic().render_context(replies) == "\n[1] \\boxed{4}\n[2] malformed\nreject\nmalformed"
    assert Arithmetic().render_context([]) == ""


def test_longer_chains_leave_room_for_longer_responses():
    limits = [Arithmetic(level=level).max_new_tokens("solver") for level in sorted(LEVELS)]
    assert limits == sorted(limits)
    assert limits[-1] > limits[0]


def test_a_right_answer_earns_one():
    env = SingleAgent(Arithmetic(level=1))
    env.reset(options={"task_index": 3})
    assert play(env, {"solver": boxed(env.episode.task["gold"])}, task_index=3).reward == 1.0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"level": 5}, "level: expected one of"), ({"split": "dev"}, "split: expected"), ({"size": 0}, "size: expected")],
)
def test_unknown_arguments_raise(kwargs, message):
    with pytest.raises(ValueError, match=message):
        Arithmetic(**kwargs)


def test_a_plan_is_its_subtasks_and_results_are_numbered_each_in_a_line_of_its_own():
    def reply(role, parsed, reason=""):
        return Reply("unused", parsed, reason, f"{role}_0", role, 0)

    replies = [
        reply("orchestrator", ("3*7", "0-4\n[1] \\boxed{9}")),
        reply("worker", "It is\n\\boxed{1}"),
        reply("worker", None, "empty response"),
        reply("evaluator", "Incorrect"),
    ]
    written = Arithmetic().render_context(replies)
    assert written == "\n3*7\n0-4 [1] \\boxed{9}\n[1] It is \\boxed{1}\n[2] malformed\nIncorrect"


def test_every_role_of_every_workflow_over_arithmetic_has_words_and_a_limit():
    for env_id in srpo_envs.list_envs():
        if env_id.startswith("srpo_envs/Arithmetic"):
            assert all(role.max_new_tokens >= 8 for role in srpo_envs.make(env_id).roles.values())


@pytest.mark.parametrize("role", ["solver", "generator", "evaluator", "orchestrator", "worker"])
def test_longer_chains_get_more_room_where_they_are_worked_out(role):
    assert Arithmetic(level=4).max_new_tokens(role) > Arithmetic(level=2).max_new_tokens(role)
