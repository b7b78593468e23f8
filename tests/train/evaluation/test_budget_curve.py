"""Scores against budget: hand-computed points of a team, what a curve refuses, and its files."""

from __future__ import annotations

import csv
import dataclasses

import pytest
from factories import boxed

from srpo_envs.errors import ConfigError, TokenCountError
from srpo_train.engines.agent import AgentEngine, AgentReply
from srpo_train.evaluation import EvalPlan, World
from srpo_train.evaluation.budget_curve import COLUMNS, CurvePoint, evaluate_budgets, with_budget, write_curves
from srpo_train.reporting.budget_figure import draw_budget_curves

TEAM = "ArithmeticSolverVerifier-v0"


def solve(question):
    """Solve ``Compute 3*7-4 from left to right, mod 10.``"""
    import re

    first, *steps = re.findall(r"[+*-]?\d+", re.search(r"Compute (\S+)", question)[1])
    value = int(first)
    for step in steps:
        value = {"+": value + int(step[1:]), "-": value - int(step[1:]), "*": value * int(step[1:])}[step[0]]
    return value % 10


def able(member):
    """Four tokens are enough for the right answer; fewer say nothing."""
    if member.max_new_tokens < 4:
        return AgentReply(text="", num_tokens=member.max_new_tokens)
    text = "<verify>approve</verify>" if member.role == "verifier" else boxed(solve(member.prompt))
    return AgentReply(text=text, num_tokens=4)


def silent(member):
    return AgentReply(text="", num_tokens=1)


def make_plan(env_id=TEAM, **kwargs):
    worlds = {"arithmetic": World.open(env_id, {"split": "test", **kwargs}, limit=3)}
    return EvalPlan(source="able", method="able", model="able", worlds=worlds, samples=2)


def evaluate(plan, folder, amounts, limit="team_tokens", agent=able):
    engine = AgentEngine("p", agent)
    return evaluate_budgets(plan, folder, {"p": engine}, {"*": "p"}, limit=limit, amounts=amounts)


def test_every_point_by_hand(tmp_path):
    points = evaluate(make_plan(), tmp_path, [20, 12, 16, 9])
    assert [
        (p.amount, p.avg_at_k, p.pass_at_k, p.tokens_per_query, p.calls_per_query, p.utility, p.out_of_budget_share)
        for p in points
    ] == [
        # Three tokens for each draft: no draft, and no token for a verdict.
        (9, 0.0, 0.0, 9.0, 3.0, 0.0, 1.0),
        # Three drafts of four tokens, then nothing is left.
        (12, 0.0, 0.0, 12.0, 3.0, 0.0, 1.0),
        # A verdict too, but no answer.
        (16, 0.0, 0.0, 16.0, 4.0, 0.0, 1.0),
        # Just enough: one right answer for 20 tokens is 50,000 for a million.
        (20, 1.0, 1.0, 20.0, 5.0, 50_000.0, 0.0),
    ]
    assert {(p.limit, p.num_samples, p.avg_at_k_std, p.tool_calls_per_query) for p in points} == {
        ("team_tokens", 6, None, 0.0)
    }


def test_a_single_agent_answers_at_a_fifth_of_the_cost(tmp_path):
    points = evaluate(make_plan("ArithmeticSingleAgent-v0"), tmp_path, [3, 4])
    assert [(p.avg_at_k, p.tokens_per_query, p.utility) for p in points] == [(0.0, 3.0, 0.0), (1.0, 4.0, 250_000.0)]


def test_other_limits_and_a_budget_of_its_own_hold_together(tmp_path):
    plan = make_plan(budget={"team_tokens": 20})
    limited = with_budget(plan, "calls", 5)
    assert limited.worlds["arithmetic"].env_kwargs["budget"] == {"team_tokens": 20, "calls": 5}
    assert [p.avg_at_k for p in evaluate(plan, tmp_path, [4, 5], "calls")] == [0.0, 1.0]


def test_a_curve_holds_what_was_asked_for_and_not_what_lies_there_from_before(tmp_path):
    plan = make_plan()
    world = plan.worlds["arithmetic"]
    evaluate(dataclasses.replace(plan, worlds={"other": world}), tmp_path, [20], agent=silent)
    evaluate(dataclasses.replace(plan, seeds=(1,)), tmp_path, [20])
    (point,) = evaluate(plan, tmp_path, [20])
    assert (point.num_samples, point.avg_at_k, point.avg_at_k_std) == (6, 1.0, None)


def test_an_answer_beyond_its_share_is_wrong_and_one_without_a_count_is_refused(tmp_path):
    first = make_plan().worlds["arithmetic"].make_env().tasks.task(0).question

    def boastful(member):
        return AgentReply(text=able(member).text, num_tokens=99) if first in member.prompt else able(member)

    (point,) = evaluate(make_plan(), tmp_path / "a", [30], agent=boastful)
    assert (point.num_samples, point.avg_at_k) == (6, 2 / 3)
    with pytest.raises(TokenCountError, match="does not say how many tokens it has"):
        evaluate(make_plan(), tmp_path / "b", [30], agent=lambda member: able(member).text)


def test_budgets_that_cannot_be_are_refused_before_anything_is_sampled(tmp_path):
    for limit, amounts, message in (
        ("tokens", [9], "no limit 'tokens'"),
        ("calls", [9, 9], "each once"),
        ("calls", [2, 9], "no room for the first active set"),
        ("turns", [0], "turns = 0 leaves no room"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(make_plan(), tmp_path, amounts, limit)
    assert not list(tmp_path.iterdir())


def point(amount, **fields):
    defaults = {
        "limit": "team_tokens", "num_samples": 6, "avg_at_k": 0.5, "avg_at_k_std": None, "pass_at_k": 0.75,
        "tokens_per_query": 8.5, "calls_per_query": 5.0, "tool_calls_per_query": 0.0, "utility": None,
        "out_of_budget_share": 0.25,
    }  # fmt: skip
    return CurvePoint(amount=amount, **(defaults | fields))


def test_the_table_has_a_line_for_each_point_and_nothing_where_nothing_was_measured(tmp_path):
    write_curves({"team": [point(16), point(32)], "single": [point(16, avg_at_k=1.0)]}, tmp_path / "x" / "curve.csv")
    rows = list(csv.DictReader((tmp_path / "x" / "curve.csv").read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["method"], row["amount"], row["avg_at_k"], row["utility"]) for row in rows] == [
        ("team", "16", "0.5", ""),
        ("team", "32", "0.5", ""),
        ("single", "16", "1.0", ""),
    ]


@pytest.mark.parametrize("limit", ["team_tokens", "calls", "turns", "tool_calls"])
def test_the_picture_is_drawn_for_every_limit(tmp_path, limit):
    pytest.importorskip("matplotlib")
    curves = {
        "team": [point(16, limit=limit, avg_at_k_std=0.1), point(32, limit=limit, avg_at_k_std=0.1)],
        "nobody counted": [point(16, limit=limit, tokens_per_query=None, calls_per_query=None)],
    }
    draw_budget_curves(curves, tmp_path / "curve.png", samples=4)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
