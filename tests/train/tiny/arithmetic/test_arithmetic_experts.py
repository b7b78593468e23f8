from __future__ import annotations

import dataclasses
from collections import defaultdict
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError
from srpo_envs.parsing import Malformed, Parsed, parse_boxed_answer, parse_route, parse_verdict
from srpo_envs.schedule import Role
from srpo_envs.tasks.arithmetic import Arithmetic, partial_results
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.tiny.arithmetic.curriculum import ARITHMETIC, SPOILED, draft_rates
from srpo_train.tiny.arithmetic.experts import (
    CLEAN,
    ArithmeticCast,
    TeamHabits,
    sample_environment,
    with_random_company,
)
from srpo_train.tiny.experts import play_examples

TASKS = Arithmetic(level=3)
ALWAYS_WRONG = TeamHabits(random_verdict=0.0, bare_guess=1.0)

WORKFLOWS = {
    "single": partial(SingleAgent, TASKS),
    **{
        f"{variant}-{num_solvers}": partial(SolverVerifier, TASKS, variant=variant, num_solvers=num_solvers)
        for variant in ("fixed", "mixed", "routed")
        for num_solvers in (1, 3, 5)
    },
}


def play(make_env, num_episodes, *, target=CLEAN, committed=CLEAN, seed=0):
    """(task, example) of every event of the first episodes."""
    rng, env = np.random.default_rng(seed), make_env()
    for index in range(num_episodes):
        for example in play_examples(
            env, ArithmeticCast, task_index=index, rng=rng, target=target, committed=committed
        ):
            yield env.tasks.task(index), example


def solutions(habits, num_episodes=3000):
    """(start, steps, think results or None, answer) of many solvers with these habits."""
    for task, example in play(partial(SingleAgent, TASKS), num_episodes, target=habits):
        answer = int(example.response[-2])
        worked = example.response.startswith("<think>")
        results = [int(part[0]) for part in example.response.split("=")[1:]] if worked else None
        yield task.info["start"], task.info["steps"], results, answer


def read(event_type, text, num_solvers):
    """What the environment reads in a response."""
    if event_type == "verifier":
        return parse_verdict(text)
    if event_type == "router":
        return parse_route(text, low=1, high=num_solvers, allow_stop=False)
    return parse_boxed_answer(text)


def near(count, total, rate):
    """Whether a count is within four standard deviations of its binomial mean; the seeds are fixed."""
    return abs(count - total * rate) < 4 * (total * rate * (1 - rate)) ** 0.5


# --- what experts write is what the environment reads --------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_clean_responses_parse_and_solve_in_every_workflow(workflow):
    env = WORKFLOWS[workflow]()
    rng = np.random.default_rng(1)
    for index in range(20):
        gold = env.tasks.task(index).gold
        for example in play_examples(env, ArithmeticCast, task_index=index, rng=rng, target=CLEAN, committed=CLEAN):
            parsed = read(example.event_type, example.response, getattr(env, "num_solvers", 1))
            assert isinstance(parsed, Parsed)
            if example.event_type in ("solver", "revision", "aggregator"):
                assert parsed.value == gold
        assert env.episode.reward == 1.0
        assert all(member.is_valid for event in env.episode.events for member in event.members)


def test_a_clean_solution_shows_every_partial_result():
    for start, steps, results, answer in solutions(CLEAN, 100):
        assert results == partial_results(start, steps)
        assert answer == results[-1]


@pytest.mark.parametrize("workflow", ["mixed-3", "fixed-3", "routed-3"])
def test_clean_targets_stay_right_in_the_company_of_wrong_drafts(workflow):
    kinds = defaultdict(int)
    for task, example in play(WORKFLOWS[workflow], 60, committed=ALWAYS_WRONG, seed=2):
        kinds[example.event_type] += 1
        if example.event_type in ("solver", "revision"):
            assert parse_boxed_answer(example.response) == Parsed(task.gold)
    assert kinds["revision"] > 20  # of 60 episodes; wrong drafts were rejected


def test_the_aggregator_follows_the_majority_and_the_verifier_approves_it_only_where_it_is_right():
    verdicts = defaultdict(int)
    for task, example in play(WORKFLOWS["mixed-3"], 200, committed=ALWAYS_WRONG, seed=3):
        drafts = [line[-2] for line in example.prompt.splitlines() if line.startswith("[")]
        most = max(map(drafts.count, drafts), default=0)
        leaders = {draft for draft in drafts if drafts.count(draft) == most}
        if example.event_type == "aggregator":
            assert parse_boxed_answer(example.response).value in leaders
        if example.event_type == "verifier":
            verdict = parse_verdict(example.response).value
            assert verdict == ("approve" if task.gold in leaders else "reject")
            verdicts[verdict] += 1
    assert min(verdicts["approve"], verdicts["reject"]) > 30


def test_a_role_without_an_expert_is_refused():
    class Critics(SetEnv):
        def __init__(self):
            super().__init__(TASKS, roles=(Role("critic", parse=parse_verdict, prompt="$question", max_new_tokens=4),))

        def schedule(self, task):
            (reply,) = yield self.ask("critic")
            return self.outcome(reply)

    with pytest.raises(ConfigError, match="no expert plays role 'critic'; expected one of aggregator"):
        list(play(Critics, 1))


# --- spoiled habits have the rates they state ---------------------------------------------------------------------


def test_a_wrong_step_goes_on_from_its_random_digit():
    wrong = total = 0
    for start, steps, results, answer in solutions(TeamHabits(wrong_step=0.3)):
        assert answer == results[-1]
        for (value, result), step in zip(pairwise([start, *results]), steps, strict=True):
            total += 1
            wrong += result != partial_results(value, [step])[0]
    assert total > 10_000
    assert near(wrong, total, 0.3 * 9 / 10)  # one random digit in ten is the right one


def test_a_response_flips_all_its_subtractions_or_none():
    flipped = total = 0
    for start, steps, results, _ in solutions(TeamHabits(flipped_minus=0.35)):
        kinds = set()
        for (value, result), (op, digit) in zip(pairwise([start, *results]), steps, strict=True):
            right, reverse = partial_results(value, [(op, digit)])[0], (digit - value) % 10
            assert result in ((right, reverse) if op == "-" else (right,))
            if right != reverse and op == "-":
                kinds.add(result == reverse)
        assert len(kinds) <= 1
        total += len(kinds)
        flipped += kinds == {True}
    assert total > 1000
    assert near(flipped, total, 0.35)


def test_a_bare_guess_has_no_working_and_is_right_one_time_in_ten():
    guesses = [
        answer == partial_results(start, steps)[-1]
        for start, steps, results, answer in solutions(TeamHabits(bare_guess=0.65))
        if results is None
    ]
    assert near(len(guesses), 3000, 0.65)
    assert near(sum(guesses), len(guesses), 0.1)


def test_random_verdicts_are_tossed():
    responses = [
        example.response
        for _, example in play(
            partial(SolverVerifier, TASKS, max_rounds=1), 2000, target=TeamHabits(random_verdict=0.3)
        )
        if example.event_type == "verifier"
    ]
    # All drafts are right, so a rejection is a coin's.
    assert near(responses.count("<verify>reject</verify>"), 2000, 0.3 / 2)


def test_random_choices_name_any_draft():
    missed = total = 0
    team = partial(SolverVerifier, TASKS, num_solvers=3, max_rounds=1)
    for _, example in play(team, 3000, target=TeamHabits(random_choice=0.3), committed=TeamHabits(bare_guess=0.4)):
        drafts = [line[-2] for line in example.prompt.splitlines() if line.startswith("[")]
        if example.event_type == "aggregator" and len(set(drafts)) == 2:
            total += 1
            missed += drafts.count(example.response[-2]) == 1
    assert total > 500
    assert near(missed, total, 0.3 / 3)  # one draft of three is not of the majority


def test_random_routes_choose_any_number_of_solvers():
    team = partial(SolverVerifier, TASKS, variant="routed", num_solvers=4, max_rounds=1)
    responses = [
        example.response
        for _, example in play(team, 2000, target=TeamHabits(random_route=0.5))
        if example.event_type == "router"
    ]
    for size, route in enumerate(("1", "1,2", "1,2,3"), start=1):
        assert near(responses.count(f"<route>{route}</route>"), 2000, 0.5 / 4), size
    # The habit without chance asks everybody for a first draft.
    assert near(responses.count("<route>1,2,3,4</route>"), 2000, 0.5 + 0.5 / 4)


@pytest.mark.parametrize("variant", ["mixed", "routed"])
def test_malformed_responses_of_every_role_decide_nothing(variant):
    malformed = total = 0
    env = SolverVerifier(TASKS, variant=variant)
    broken = TeamHabits(malformed=0.3)
    rng = np.random.default_rng(4)
    for index in range(600):
        list(play_examples(env, ArithmeticCast, task_index=index, rng=rng, target=broken, committed=broken))
        for event in env.episode.events:
            for member in event.members:
                total += 1
                malformed += not member.is_valid
    assert near(malformed, total, 0.3)


def test_a_malformed_response_is_malformed_wherever_it_was_cut():
    team = partial(SolverVerifier, TASKS, variant="routed", num_solvers=3)
    broken, dubious = TeamHabits(malformed=1.0), TeamHabits(random_verdict=1.0)
    for _, example in play(team, 300, target=broken, committed=dubious):
        assert isinstance(read(example.event_type, example.response, num_solvers=3), Malformed)


# --- the mixture of the warm start --------------------------------------------------------------------------------


def test_the_mixture_covers_every_kind_of_event_variant_and_team_size():
    rng = np.random.default_rng(5)
    kinds, worlds = defaultdict(int), defaultdict(int)
    for index in range(400):
        env = sample_environment(rng, level=2)
        worlds[type(env).__name__, getattr(env, "variant", None), getattr(env, "num_solvers", None)] += 1
        company = with_random_company(SPOILED, rng)
        for example in play_examples(env, ArithmeticCast, task_index=index, rng=rng, target=SPOILED, committed=company):
            kinds[example.event_type] += 1
    assert set(kinds) == set(ARITHMETIC.role_weights)
    assert set(worlds) == {
        ("SingleAgent", None, None),
        *(("SolverVerifier", variant, size) for variant in ("fixed", "mixed", "routed") for size in range(1, 6)),
    }


def test_training_questions_are_never_held_out_ones():
    rng = np.random.default_rng(6)
    assert {sample_environment(rng, level).tasks.split for level in (1, 2, 3) for _ in range(20)} == {"train"}


def test_company_is_of_every_quality_and_keeps_the_other_habits():
    rng = np.random.default_rng(7)
    companies = [with_random_company(SPOILED, rng) for _ in range(400)]
    shares = [company.wrong_step for company in companies]
    assert 0 <= min(shares) < 0.05 and 0.45 < max(shares) <= 0.5
    assert {dataclasses.replace(c, wrong_step=0, random_verdict=0, malformed=0) for c in companies} == {
        dataclasses.replace(SPOILED, wrong_step=0, random_verdict=0, malformed=0)
    }


def test_the_rate_of_right_drafts_counts_first_and_revised_ones():
    env = SolverVerifier(TASKS, num_solvers=3, max_rounds=2)
    gold = env.tasks.task(0).gold
    active = env.reset(options={"task_index": 0})
    wrong = str((int(gold) + 1) % 10)
    for texts in ([gold, wrong, wrong], ["reject"], [gold], ["approve"], [wrong]):
        wrapped = [
            f"<verify>{text}</verify>" if active.event_type == "verifier" else f"\\boxed{{{text}}}" for text in texts
        ]
        active = env.step(active.outputs(wrapped)).next
    # Three drafts and a revision, two of them right; the aggregator's answer is no draft.
    assert draft_rates([env.episode]) == {"right/solver": 0.5}
    assert draft_rates([]) == {}
