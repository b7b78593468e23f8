"""Experts of the workflows over functions: clean ones are right, spoiled ones err as often as they say."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.parsing import parse_subtasks
from srpo_envs.tasks.tiny_code import WORDS, TinyCode, write_program
from srpo_envs.workflows.eval_opt import EvalOpt
from srpo_envs.workflows.orchestrator_workers import OrchestratorWorkers
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.voting import Voting
from srpo_train.tiny.experts import play_examples
from srpo_train.tiny.workflows.code import CLEAN, CodeHabits, CodeWorkflowCast, fence, spoil, training_tasks
from srpo_train.tiny.workflows.curriculum import CODERS, SPOILED_CODE

TASKS = training_tasks(3)
TEAMS = {
    "single": partial(SingleAgent, TASKS),
    "eval-opt": partial(EvalOpt, TASKS),
    "voting": partial(Voting, TASKS),
    "orchestrator-workers": partial(OrchestratorWorkers, TASKS),
    "two-workers": partial(OrchestratorWorkers, TASKS, max_subtasks=2),
}

steps = st.lists(st.tuples(st.sampled_from(list(WORDS)), st.integers(2, 9)), min_size=1, max_size=5)


def play(make_env, num_episodes, *, target=CLEAN, committed=CLEAN):
    """(environment after its episode, examples) of the first episodes."""
    rng, env = np.random.default_rng(0), make_env()
    for index in range(num_episodes):
        yield (
            env,
            list(play_examples(env, CodeWorkflowCast, task_index=index, rng=rng, target=target, committed=committed)),
        )


def near(count, total, rate):
    """Whether a count is within four standard deviations of its binomial mean; the seeds are fixed."""
    return abs(count - total * rate) < 4 * (total * rate * (1 - rate)) ** 0.5


@pytest.mark.parametrize("team", TEAMS)
def test_clean_experts_keep_to_every_format_and_are_right_in_every_workflow(team):
    for env, _ in play(TEAMS[team], 20):
        assert env.episode.reward == 1.0
        assert all(member.is_valid for event in env.episode.events for member in event.members)


def test_clean_experts_are_right_in_the_company_of_guesses():
    for env, examples in play(TEAMS["eval-opt"], 40, committed=CodeHabits(bare_guess=1.0)):
        gold = env.episode.task["gold"]
        drafts = [event.members[0].parsed for event in env.episode.events if event.event_type != "evaluator"]
        for example in examples:
            if example.event_type == "evaluator":
                verdict = "Correct" if drafts.pop(0) == gold else "Incorrect"
                assert example.response.endswith(f"</think>\\boxed{{{verdict}}}")
            else:
                assert example.response == fence(gold)


def test_plans_give_every_worker_a_step_and_the_last_the_rest():
    def plans(team):
        return {
            tuple(subtask.count(",") + 1 for subtask in parse_subtasks(examples[0].response, most=3).value)
            for _, examples in play(TEAMS[team], 20)
        }

    assert plans("orchestrator-workers") == {(1, 1, 1)}
    assert plans("two-workers") == {(1, 2)}


def test_random_plans_cut_anywhere():
    sizes = {
        parse_subtasks(examples[0].response, most=3).value
        for _, examples in play(TEAMS["orchestrator-workers"], 60, target=CodeHabits(random_plan=1.0))
    }
    assert {tuple(subtask.count(",") + 1 for subtask in plan) for plan in sizes} == {(1, 1, 1), (1, 2), (2, 1), (3,)}


def test_a_bare_guess_has_the_right_length_and_nothing_else():
    pairs = [
        (env.episode.task["gold"], examples[0].response)
        for env, examples in play(TEAMS["single"], 400, target=CodeHabits(bare_guess=0.5))
    ]
    assert all(text.count("\n") == fence(gold).count("\n") for gold, text in pairs)
    assert near(sum(text != fence(gold) for gold, text in pairs), 400, 0.5)


@given(steps)
def test_spoiling_swaps_and_replaces(chosen):
    rng = np.random.default_rng(0)
    assert spoil(chosen, CLEAN, rng) == chosen
    assert spoil(chosen, CodeHabits(swapped=1.0), rng) == chosen[::-1]
    assert len(spoil(chosen, CodeHabits(wrong_step=1.0), rng)) == len(chosen)


def test_steps_are_replaced_at_the_stated_rate():
    rng = np.random.default_rng(0)
    spoilt = [spoil([("plus", 9)], CodeHabits(wrong_step=0.3), rng)[0] for _ in range(2000)]
    # One draw in forty is the step itself.
    assert near(sum(step != ("plus", 9) for step in spoilt), 2000, 0.3 * 39 / 40)


def test_a_synthesizer_without_results_guesses():
    for _, examples in play(TEAMS["orchestrator-workers"], 20, committed=CodeHabits(malformed=0.0)):
        assert examples[-1].event_type == "synthesizer"
    cast = CodeWorkflowCast(TEAMS["orchestrator-workers"](), TASKS.task(0))
    rng = np.random.default_rng(0)
    assert cast.combine([None, "x is"], CLEAN, rng).startswith("```python\ndef f(x):\n    x ")
    assert cast.combine(["x += 3; x %= 5", None, "x //= 2"], CLEAN, rng) == fence(
        write_program([("plus", 3), ("mod", 5), ("over", 2)])
    )


def test_training_questions_are_those_of_the_family_and_none_held_out():
    held_out = {TinyCode(level=2, split="test").task(index).question for index in range(256)}
    rng = np.random.default_rng(0)
    prompts = [e.prompt for _ in range(60) for e in CODERS.play(2, SPOILED_CODE, rng) if e.event_type != "worker"]
    assert not held_out & {prompt.splitlines()[0] for prompt in prompts}
