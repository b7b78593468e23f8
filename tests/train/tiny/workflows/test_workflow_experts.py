from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.parsing import Malformed, parse_subtasks
from srpo_envs.tasks.arithmetic import Arithmetic, partial_results
from srpo_envs.workflows.eval_opt import EvalOpt
from srpo_envs.workflows.orchestrator_workers import OrchestratorWorkers
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.voting import Voting
from srpo_train.tiny.experts import play_examples
from srpo_train.tiny.workflows.arithmetic import (
    CLEAN,
    ArithmeticHabits,
    ArithmeticWorkflowCast,
    split_steps,
    training_tasks,
    write_parts,
)
from srpo_train.tiny.workflows.curriculum import SPOILED, WORKFLOWS, workflow_rates
from srpo_train.tiny.workflows.experts import GENERATORS, sample_workflow, with_random_company

TASKS = Arithmetic(level=3)
ALWAYS_WRONG = ArithmeticHabits(bare_guess=1.0)

TEAMS = {
    "single": partial(SingleAgent, TASKS),
    "eval-opt": partial(EvalOpt, TASKS),
    "voting": partial(Voting, TASKS, num_generators=4),
    "orchestrator-workers": partial(OrchestratorWorkers, TASKS),
}

steps = st.lists(st.tuples(st.sampled_from("+-*"), st.integers(1, 9)), min_size=1, max_size=8)


def play(make_env, num_episodes, *, target=CLEAN, committed=CLEAN, seed=0):
    """(environment after its episode, examples) of the first episodes."""
    rng, env = np.random.default_rng(seed), make_env()
    for index in range(num_episodes):
        examples = list(
            play_examples(env, ArithmeticWorkflowCast, task_index=index, rng=rng, target=target, committed=committed)
        )
        yield env, examples


def responses(make_env, num_episodes, kind, **habits):
    """Responses of one kind of event."""
    return [e.response for _, found in play(make_env, num_episodes, **habits) for e in found if e.event_type == kind]


def near(count, total, rate):
    """Whether a count is within four standard deviations of its binomial mean; the seeds are fixed."""
    return abs(count - total * rate) < 4 * (total * rate * (1 - rate)) ** 0.5


# --- what experts write is what the environment reads --------------------------------------------------------------


@pytest.mark.parametrize("team", TEAMS)
def test_clean_experts_keep_to_every_format_and_are_right_in_every_workflow(team):
    for env, _ in play(TEAMS[team], 30):
        assert env.episode.reward == 1.0
        assert all(member.is_valid for event in env.episode.events for member in event.members)


def test_clean_targets_stay_right_in_the_company_of_guesses():
    right = defaultdict(list)
    for env, examples in play(TEAMS["eval-opt"], 60, committed=ALWAYS_WRONG):
        gold = env.episode.task["gold"]
        drafts = [event.members[0].parsed for event in env.episode.events if event.event_type != "evaluator"]
        for example in examples:
            if example.event_type == "evaluator":
                verdict = "Correct" if drafts.pop(0) == gold else "Incorrect"
                right["evaluator"].append(example.response.endswith(f"</think>\\boxed{{{verdict}}}"))
            else:
                right[example.event_type].append(example.response.endswith(f"</think>\\boxed{{{gold}}}"))
    assert all(all(found) for found in right.values())
    assert len(right["refinement"]) > 60  # guesses were sent back


def test_the_aggregator_selects_a_draft_of_the_majority_and_the_right_one_when_they_tie():
    for env, examples in play(TEAMS["voting"], 200, committed=ArithmeticHabits(bare_guess=0.7)):
        answers = [member.parsed for member in env.episode.events[0].members]
        chosen = answers[int(examples[-1].response[-2]) - 1]
        most = max(map(answers.count, answers))
        gold = env.episode.task["gold"]
        assert answers.count(chosen) == most
        assert chosen == gold or answers.count(gold) < most


# --- splitting a chain --------------------------------------------------------------------------------------------


@given(start=st.integers(0, 9), steps=steps, most=st.integers(1, 3))
def test_the_results_of_careful_parts_add_up_to_the_chain(start, steps, most):
    parts = split_steps(steps, most)
    assert [step for part in parts for step in part] == steps
    assert len(parts) <= most
    results = [partial_results(first, part)[-1] for first, part in zip([start, 0, 0], parts, strict=False)]
    assert sum(results) % 10 == partial_results(start, steps)[-1]


def test_parts_by_hand():
    # 3*7-4+8: the product stays together, each step behind it is a part of its own.
    assert write_parts(3, split_steps([("*", 7), ("-", 4), ("+", 8)], most=3)) == ["3*7", "0-4", "0+8"]
    assert write_parts(3, split_steps([("*", 7), ("-", 4), ("+", 8)], most=2)) == ["3*7", "0-4+8"]
    assert write_parts(3, split_steps([("-", 4), ("*", 7)], most=3)) == ["3-4*7"]


def test_plans_ask_for_one_to_three_workers():
    sizes = {
        parse_subtasks(plan, most=3).value for plan in responses(TEAMS["orchestrator-workers"], 60, "orchestrator")
    }
    assert {len(plan) for plan in sizes} == {1, 2, 3}


# --- spoiled habits have the rates they state ---------------------------------------------------------------------


@pytest.mark.parametrize(("team", "kind"), [("single", "solver"), ("eval-opt", "generator"), ("voting", "generator")])
def test_a_bare_guess_has_no_working(team, kind):
    found = responses(TEAMS[team], 1000, kind, target=ArithmeticHabits(bare_guess=0.6))
    assert near(sum("<think>" not in text for text in found), len(found), 0.6)


@pytest.mark.parametrize("kind", ["worker", "synthesizer"])
def test_workers_and_synthesizers_guess_at_a_rate_of_their_own(kind):
    three_parts = partial(OrchestratorWorkers, Arithmetic(level=4))
    habits = ArithmeticHabits(bare_part=0.3, bare_guess=1.0)
    examples = [e for _, found in play(three_parts, 1000, target=habits) for e in found if e.event_type == kind]
    worked = [e for e in examples if kind == "worker" or "[2]" in e.prompt]  # a single result needs no working
    assert near(sum("<think>" not in example.response for example in worked), len(worked), 0.3)


def test_random_verdicts_are_tossed_without_working():
    found = responses(TEAMS["eval-opt"], 1000, "evaluator", target=ArithmeticHabits(random_verdict=0.6))
    assert near(sum("<think>" not in text for text in found), len(found), 0.6)
    # All drafts are right, so a rejection is a coin's.
    assert near(sum("Incorrect" in text for text in found), len(found), 0.6 / 2)


def test_random_choices_select_any_draft():
    # All drafts are right and equal: the first is selected unless chance decides.
    found = responses(TEAMS["voting"], 1000, "aggregator", target=ArithmeticHabits(random_choice=0.5))
    assert near(found.count("\\boxed{1}"), 1000, 0.5 + 0.5 / 4)
    assert near(found.count("\\boxed{4}"), 1000, 0.5 / 4)


def test_random_plans_cut_anywhere():
    short = partial(OrchestratorWorkers, Arithmetic(level=1))
    cut = total = 0
    for env, (example, *_) in play(short, 1000, target=ArithmeticHabits(random_plan=0.5)):
        if len(env.episode.task["info"]["steps"]) == 2 and env.episode.task["info"]["steps"][1][0] == "*":
            total += 1
            cut += "SUBTASK 2" in example.response  # care never separates a product from what is before it
    assert total > 100
    assert near(cut, total, 0.5 / 2)


def test_wrong_and_flipped_steps_are_those_of_a_chain():
    found = responses(TEAMS["single"], 300, "solver", target=ArithmeticHabits(wrong_step=1.0))
    exact = responses(TEAMS["single"], 300, "solver")
    assert sum(a == b for a, b in zip(found, exact, strict=True)) < 0.1 * 300


# --- the mixture of the warm start --------------------------------------------------------------------------------


def test_the_mixture_covers_every_kind_of_event_and_team():
    rng = np.random.default_rng(5)
    worlds = defaultdict(int)
    for _ in range(300):
        env = sample_workflow(TASKS, rng)
        worlds[type(env).__name__, getattr(env, "max_rounds", None), getattr(env, "num_generators", None)] += 1
    assert set(worlds) == {
        ("SingleAgent", None, None),
        ("OrchestratorWorkers", None, None),
        *(("EvalOpt", rounds, None) for rounds in (1, 2, 3)),
        *(("Voting", None, size) for size in GENERATORS),
    }
    kinds = {example.event_type for _ in range(60) for example in WORKFLOWS.play(2, SPOILED, rng)}
    assert kinds == set(WORKFLOWS.role_weights)


def test_training_questions_are_never_held_out_ones():
    assert {training_tasks(level).split for level in (1, 2, 3)} == {"train"}


def test_company_is_of_every_quality():
    rng = np.random.default_rng(7)
    guesses = [with_random_company(CLEAN, rng).bare_guess for _ in range(400)]
    assert 0 <= min(guesses) < 0.05 and 0.75 < max(guesses) <= 0.8


def test_experts_survive_malformed_company():
    broken = ArithmeticHabits(malformed=0.5)
    for team in TEAMS.values():
        for _, examples in play(team, 100, committed=broken):
            assert all(example.response for example in examples)


def test_a_malformed_plan_is_read_as_none():
    found = responses(TEAMS["orchestrator-workers"], 200, "orchestrator", target=ArithmeticHabits(malformed=1.0))
    assert any(isinstance(parse_subtasks(text, most=3), Malformed) for text in found)


def test_rates_are_means_over_the_episodes_that_have_them():
    episodes = [env.episode for env, _ in play(TEAMS["voting"], 20, committed=ALWAYS_WRONG)]
    rates = workflow_rates(episodes)
    found = [e.info["metrics"]["selection_accuracy"] for e in episodes if e.info["metrics"]["oracle_correct"]]
    assert 0 < len(found) < 20
    assert rates["selection_accuracy"] == pytest.approx(sum(found) / len(found))
    assert rates["oracle_correct"] == pytest.approx(len(found) / 20)
