"""Scores against budget: the matched-cost protocol of section 5.6 as a curve.

One evaluation is repeated under rising budgets, with the same tasks, samples and seeds. Curves of several methods in
one picture say who does better at equal cost, and from which cost on::

    points = evaluate_budgets(plan, directory, engines, roles, limit="team_tokens", amounts=[32, 64, 128])
    write_curves({"team": points}, directory / "curve.csv")
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from srpo_envs.budget import LIMITS, Budget
from srpo_envs.errors import ConfigError, near_miss
from srpo_train.collect import Mode
from srpo_train.engines.base import Engine
from srpo_train.evaluation.harness import BATCH_SIZE, OnProgress, run_evaluation
from srpo_train.evaluation.plan import EvalPlan, World
from srpo_train.evaluation.results import Results
from srpo_train.evaluation.scores import AVG_AT_K, PASS_AT_K, Score, macro_by_seed, spread

_COSTS = ("tokens_per_query", "calls_per_query", "tool_calls_per_query", "utility", "out_of_budget_share")


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """What one method reached under one budget; figures are means over seeds, of the average over benchmarks.

    Example:
        ``CurvePoint(limit="team_tokens", amount=64, avg_at_k=0.4, pass_at_k=0.7, ...)``
    """

    limit: str
    """What is limited, such as ``team_tokens``."""
    amount: int
    """To how much in an episode."""
    num_samples: int
    """Samples that count, over all seeds and benchmarks."""
    avg_at_k: float | None
    """Avg@k; None where no sample counts."""
    avg_at_k_std: float | None
    """Its sample standard deviation over seeds; None for one seed."""
    pass_at_k: float | None
    """Pass@k."""
    tokens_per_query: float | None
    """Tokens really sampled in an episode."""
    calls_per_query: float | None
    """Policy calls really made."""
    tool_calls_per_query: float | None
    """Tool calls really made."""
    utility: float | None
    """U_tok (eq. 9): successes per million sampled tokens."""
    out_of_budget_share: float | None
    """Episodes that the budget ended or cut short."""


COLUMNS = ("method", *(field.name for field in dataclasses.fields(CurvePoint)))
"""Columns of the table."""


def evaluate_budgets(
    plan: EvalPlan,
    directory: Path,
    engines: Mapping[str, Engine],
    roles: Mapping[str, str],
    *,
    limit: str,
    amounts: Sequence[int],
    mode: Mode = "rounds",
    max_concurrent: int = BATCH_SIZE,
    on_progress: OnProgress | None = None,
) -> list[CurvePoint]:
    """Evaluate a plan under each of several budgets.

    Args:
        plan: What to evaluate; a budget that its environments have already holds besides.
        directory: Each budget has an evaluation directory below it, from which an interrupted one goes on.
        engines: Engine of each policy id.
        roles: Policy id of each role.
        limit: What is limited.
        amounts: To how much, in rising order.
        mode: Order of work of the collector.
        max_concurrent: Samples under way at once.
        on_progress: Called as samples end.

    Raises:
        ConfigError: no such limit, an amount twice, or one without room for the first active set.
        EngineError: an engine failed as a whole; what was drawn is kept.
    """
    plans = {amount: with_budget(plan, limit, amount) for amount in sorted(amounts)}
    if len(plans) < len(amounts):
        raise ConfigError(f"budgets: each once, got {', '.join(map(str, amounts))}")
    for limited in plans.values():  # what has no room is said before anything is sampled
        for world in limited.worlds.values():
            world.make_env().reset(seed=0)
    points = []
    for amount, limited in plans.items():
        results = run_evaluation(
            limited,
            directory / f"{limit}-{amount}",
            engines,
            roles,
            mode=mode,
            max_concurrent=max_concurrent,
            on_progress=on_progress,
        )
        points.append(curve_point(_asked_for(results, plan), limit, amount))
    return points


def with_budget(plan: EvalPlan, limit: str, amount: int) -> EvalPlan:
    """Return a plan whose environments have this limit too.

    Raises:
        ConfigError: no such limit, or an amount that leaves no room for any event.
    """
    if limit not in LIMITS:
        raise ConfigError(f"budget: no limit {limit!r}{near_miss(limit, LIMITS)}")
    Budget.of({limit: amount})
    return dataclasses.replace(
        plan, worlds={name: _limited(world, limit, amount) for name, world in plan.worlds.items()}
    )


def curve_point(results: Results, limit: str, amount: int) -> CurvePoint:
    """Return the point that the results of an evaluation make."""
    per_benchmark = [_mean_costs(results, name) for name in results.benchmarks]
    average = {name: _mean([costs.get(name) for costs in per_benchmark]) for name in _COSTS}
    found = [result for benchmark in results.benchmarks.values() for result in benchmark.seeds.values()]
    avg, std = _score(results, AVG_AT_K)
    return CurvePoint(
        limit=limit,
        amount=amount,
        num_samples=sum(result.num_samples for result in found),
        avg_at_k=avg,
        avg_at_k_std=std,
        pass_at_k=_score(results, PASS_AT_K)[0],
        **average,
    )


def write_curves(curves: Mapping[str, Sequence[CurvePoint]], path: Path) -> None:
    """Write curves by method as CSV with the columns `COLUMNS`; a figure that was not measured is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for method, points in curves.items():
            rows.writerows({"method": method, **dataclasses.asdict(point)} for point in points)


def _asked_for(results: Results, plan: EvalPlan) -> Results:
    """The plan's part of a directory, which may hold benchmarks and seeds of an earlier curve besides."""
    found = {name: results.benchmarks[name] for name in plan.worlds}
    return dataclasses.replace(
        results,
        benchmarks={
            name: dataclasses.replace(benchmark, seeds={seed: benchmark.seeds[seed] for seed in plan.seeds})
            for name, benchmark in found.items()
        },
    )


def _limited(world: World, limit: str, amount: int) -> World:
    budget = {**Budget.of(world.env_kwargs.get("budget")).limits, limit: amount}
    return dataclasses.replace(world, env_kwargs={**world.env_kwargs, "budget": budget})


def _score(results: Results, score: Score) -> tuple[float | None, float | None]:
    found = spread(list(macro_by_seed(results, score).values()))
    return (found.mean, found.std) if found else (None, None)


def _mean_costs(results: Results, name: str) -> dict[str, float | None]:
    columns = [result.costs for result in results.benchmarks[name].seeds.values()]
    return {cost: _mean([column.get(cost) for column in columns]) for cost in _COSTS}


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of them is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
