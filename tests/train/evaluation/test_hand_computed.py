"""An evaluation of a team with known accuracy gives exactly what pen and paper give."""

from __future__ import annotations

import json

import pytest
from factories import APPROVE, boxed

from srpo_envs.audit import audit_run
from srpo_train.engines.base import Generation
from srpo_train.evaluation import EvalPlan, World, read_results, run_evaluation, scores

# Three questions, sixteen samples of each: the team is right on the first so many, and its last word grows longer.
NUM_RIGHT = {"What is 1 + 1?": 16, "What is 2 + 2?": 4, "What is 3 + 3?": 0}
GOLD = {"What is 1 + 1?": 2, "What is 2 + 2?": 4, "What is 3 + 3?": 6}
LAST_TOKENS = {"What is 1 + 1?": 7, "What is 2 + 2?": 27, "What is 3 + 3?": 67}

# Two solvers draft at the same time, a verifier approves, an aggregator answers.
TOKENS = {"solver_0": 10, "solver_1": 20, "verifier_0": 3}
SECONDS = {"solver_0": 1.0, "solver_1": 2.0, "verifier_0": 0.5, "aggregator_0": 0.25}


class KnownTeam:
    """Answers as the tables above say; sample s takes s tenths of a second longer for its last word."""

    policy_id = "team"

    def generate(self, requests, sampling):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        agent = request.member.agent
        question = next(question for question in NUM_RIGHT if question in request.prompt)
        sample = int(request.request_id.rpartition("/e")[0].rpartition("/k")[2])
        is_last = agent == "aggregator_0"
        answer = GOLD[question] if sample < NUM_RIGHT[question] else 99
        return Generation(
            request_id=request.request_id,
            text=APPROVE if agent == "verifier_0" else boxed(answer),
            prompt_token_ids=tuple(range(50)),
            token_ids=(),
            logprobs=(),
            finish_reason="stop",
            num_unseen_tokens=LAST_TOKENS[question] if is_last else TOKENS[agent],
            timings={"generate_s": SECONDS[agent] + (0.1 * sample if is_last else 0.0)},
        )

    def close(self):
        pass


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    data = folder / "own.jsonl"
    data.write_text("".join(json.dumps({"problem": q, "answer": str(gold)}) + "\n" for q, gold in GOLD.items()))
    kwargs = {"dataset": "custom", "path": str(data), "num_solvers": 2}
    plan = EvalPlan(
        source="known",
        method="known",
        model="known",
        samples=16,
        seeds=(0, 1),
        worlds={"own": World.open("MathSolverVerifier-v0", kwargs)},
    )
    run_evaluation(plan, folder / "eval", {"team": KnownTeam()}, {"*": "team"}, batch_size=20)
    return folder / "eval"


@pytest.fixture
def found(directory):
    return read_results(directory).benchmarks["own"].seeds[0]


def test_avg_and_pass_at_16(found):
    assert found.num_samples == 48
    assert found.avg_at_k == pytest.approx((16 / 16 + 4 / 16 + 0 / 16) / 3, rel=1e-15)  # 5/12
    assert found.pass_at_k == 2 / 3
    assert [task.num_correct for task in found.per_task] == [16, 4, 0]
    assert {task.num_samples for task in found.per_task} == {16}


def test_unbiased_pass_at_4(found):
    # (1 + (1 - C(12,4)/C(16,4)) + 0) / 3, and C(12,4)/C(16,4) is 495/1820.
    assert scores.pass_at_k(found.per_task, 4) == pytest.approx((2 - 495 / 1820) / 3, rel=1e-14)


def test_costs_of_equation_8(found):
    # 10 + 20 + 3 tokens and the last word's 7, 27 or 67: 40, 60 and 100 a sample.
    assert [task.num_tokens for task in found.per_task] == [16 * 40, 16 * 60, 16 * 100]
    assert found.costs["tokens_per_query"] == pytest.approx(200 / 3)
    assert found.costs["calls_per_query"] == 4
    assert found.costs["tool_calls_per_query"] == 0
    assert found.costs["prompt_tokens_per_query"] == 200


def test_utility_of_equation_9(found):
    # Sum of Avg@16 is 1.25, sum of C_tok is 40 + 60 + 100: 1e6 * 1.25 / 200.
    assert found.costs["utility"] == pytest.approx(6250, rel=1e-14)


def test_the_cost_proxy(found):
    # Four calls in three events, 200/3 tokens over four calls.
    assert found.costs["cost_proxy"] == pytest.approx(4 / 3 * 200 / 12)


def test_latency_along_the_critical_path(found):
    # The slower solver 2.0, the verifier 0.5, the aggregator 0.25 + s/10: 2.75 to 4.25 by tenths, three of each.
    # The median lies between s = 7 and 8; 0.95 * 47 = 44.65 lies between the last of s = 14 and the first of s = 15.
    assert found.costs["latency_p50_s"] == pytest.approx(2.75 + 0.75)
    assert found.costs["latency_p95_s"] == pytest.approx(2.75 + 1.4 + 0.65 * 0.1)
    # One after the other it would have been 1.0 + 2.0 + 0.5 + 0.25 and 0.75 on average.
    assert found.costs["engine_s_per_query"] == pytest.approx(4.5)


def test_two_equal_seeds_have_no_spread(directory):
    results = read_results(directory)
    spread = scores.spread(list(scores.macro_by_seed(results, scores.AVG_AT_K).values()))
    assert (spread.mean, spread.std, spread.num_runs) == (pytest.approx(5 / 12), 0.0, 2)


def test_every_sample_replays(directory):
    report = audit_run(directory, replay=True)
    report.raise_if_failed()
    assert report.num_replayed == 2 * 48


class SearchesTwice:
    """Asks for something in its first two turns and answers in the third: 6, 8 and 4 tokens."""

    policy_id = "searcher"

    def generate(self, requests, sampling):
        return [self._answer(request, int(request.request_id.split("/e")[-1][0])) for request in requests]

    def _answer(self, request, turn):
        text = "<think></think><answer>nobody</answer>" if turn == 2 else f"<think></think><search>boss {turn}</search>"
        return Generation(
            request_id=request.request_id,
            text=text,
            prompt_token_ids=(),
            token_ids=(),
            logprobs=(),
            finish_reason="stop",
            num_unseen_tokens=(6, 8, 4)[turn],
        )

    def close(self):
        pass


def test_tool_calls_of_equation_8(tmp_path):
    plan = EvalPlan(
        source="searcher",
        method="searcher",
        model="searcher",
        samples=2,
        worlds={"village": World.open("VillageSearchAgent-v0", {"split": "test", "max_turns": 3}, limit=3)},
    )
    results = run_evaluation(plan, tmp_path, {"searcher": SearchesTwice()}, {"*": "searcher"})
    costs = results.benchmarks["village"].seeds[0].costs
    assert (costs["tool_calls_per_query"], costs["calls_per_query"], costs["tokens_per_query"]) == (2, 3, 18)
    assert costs["utility"] == 0
    assert "latency_p50_s" not in costs  # the engine does not say how long it took
    assert "prompt_tokens_per_query" not in costs
