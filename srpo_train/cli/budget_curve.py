"""``srpo budget-curve``: scores of several methods under rising budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from srpo_envs.errors import ConfigError

if TYPE_CHECKING:
    from srpo_train.cli._worlds import PolicySource
    from srpo_train.evaluation import EvalPlan
    from srpo_train.evaluation.budget_curve import CurvePoint

CURVE_FILE = "budget-curve.csv"
PICTURE_FILE = "budget-curve.png"


def budget_curve(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="What to evaluate, as `srpo eval` takes it; one or more.")
    ],
    budgets: Annotated[str, typer.Option(metavar="N,M", help="Budgets of an episode.")],
    limit: Annotated[
        str, typer.Option("--limit", help="What is limited: team_tokens, calls, turns or tool_calls.")
    ] = "team_tokens",
    envs: Annotated[
        list[str] | None,
        typer.Option("--env", help="Environment of all sources, or one for each; a run or recipe has its own."),
    ] = None,
    labels: Annotated[list[str] | None, typer.Option("--label", help="Name of each curve; repeatable.")] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument of every environment; repeatable."),
    ] = None,
    split: Annotated[str, typer.Option(help="Short for --arg split=...")] = "",
    benchmarks: Annotated[
        str, typer.Option(metavar="A,B", help="Names of benchmarks; `srpo benchmarks` lists them.")
    ] = "",
    num_tasks: Annotated[int, typer.Option(min=0, help="The first so many tasks, as in `srpo eval`.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task, the k of Avg@k and Pass@k.")] = 16,
    seeds: Annotated[str, typer.Option(metavar="N,M", help="Each seed draws other samples of every task.")] = "0",
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")] = 1.0,
    device: Annotated[str, typer.Option(help="Where a model runs; a run says itself.")] = "auto",
    out: Annotated[Path, typer.Option(help="Directory of the curve; evaluations that are there already go on.")] = Path(
        "evals/budget-curve"
    ),
) -> None:
    """Draw Avg@k and Pass@k against a budget that the environment enforces, several methods in one picture.

    Every method answers the same tasks as often under each budget. Writes budget-curve.csv and budget-curve.png, and
    beside them an evaluation directory for each method and budget. One source with several environments, such as a
    team and a single agent of one policy, makes one curve for each.
    """
    from srpo_train.cli._numbers import whole_numbers
    from srpo_train.cli._worlds import find_policies, parse_arguments
    from srpo_train.cli.eval import choose_world, default_method, open_worlds
    from srpo_train.engines.base import Sampling
    from srpo_train.evaluation import EvalPlan
    from srpo_train.run_dir import describe_software

    amounts, given = whole_numbers("--budgets", budgets, "32,64,128"), parse_arguments(arguments or [], split)
    methods = []
    for source, env, label in _curves(sources, envs or [], labels or []):
        policies = find_policies(source, device=device)
        world = choose_world(policies, env, given)
        plan = EvalPlan(
            source=str(policies.run_dir) if policies.run_dir else policies.name,
            method=label or f"{default_method(policies)} on {world.id.rpartition('/')[2]}",
            model=policies.model,
            checkpoint=policies.step,
            worlds=open_worlds(world, benchmarks, [], num_tasks),
            samples=samples,
            seeds=whole_numbers("--seeds", seeds),
            sampling=Sampling(temperature=temperature),
            software=describe_software(),
        )
        methods.append(_Method(policies, plan))
    _refuse_shared_folders(methods)
    curves = {method.label: method.points(out, limit, amounts) for method in methods}
    _write(curves, out, methods[0].plan)
    _show(curves, samples)
    typer.echo(out / CURVE_FILE)
    typer.echo(out / PICTURE_FILE)


@dataclass(frozen=True, slots=True)
class _Method:
    """What one curve shows."""

    policies: PolicySource
    plan: EvalPlan

    @property
    def label(self) -> str:
        """Name of the curve."""
        return self.plan.method

    @property
    def folder(self) -> str:
        """Directory of its evaluations, below that of the curves."""
        return re.sub(r"[^\w.+-]+", "-", self.label).strip("-.")

    def points(self, out: Path, limit: str, amounts: Sequence[int]) -> list[CurvePoint]:
        """Evaluate under each budget, in a folder of the curve's name."""
        from srpo_train.cli._evaluation import quiet_failures, show_progress
        from srpo_train.cli._worlds import open_engines
        from srpo_train.cli.eval import order_of_work
        from srpo_train.evaluation.budget_curve import evaluate_budgets

        with (
            quiet_failures(),
            open_engines(self.policies) as engines,
            show_progress(self.plan.samples) as on_progress,
        ):
            mode, max_concurrent = order_of_work(engines)
            return evaluate_budgets(
                self.plan,
                out / self.folder,
                engines,
                self.policies.roles,
                limit=limit,
                amounts=amounts,
                mode=mode,
                max_concurrent=max_concurrent,
                on_progress=on_progress,
            )


def _refuse_shared_folders(methods: Sequence[_Method]) -> None:
    seen: dict[str, _Method] = {}
    for method in methods:
        if not method.folder:
            raise ConfigError(f"curve {method.label!r}: no letter or digit to name its directory after; give a --label")
        if (other := seen.setdefault(method.folder, method)) is not method:
            raise ConfigError(
                f"curves {other.label!r} and {method.label!r} would share the directory {method.folder!r}; give each "
                "a --label that differs more"
            )


def _curves(sources: Sequence[str], envs: Sequence[str], labels: Sequence[str]) -> list[tuple[str, str, str]]:
    """Source, environment and label of each curve; a single source or environment stands for all."""
    number = max(len(sources), len(envs))
    for name, given in (("SOURCE", sources), ("--env", envs), ("--label", labels)):
        may_stand_for_all = name != "--label" and len(given) == 1
        if given and len(given) != number and not may_stand_for_all:
            raise ConfigError(f"{name}: {len(given)} given for {number} curves; give one for each")
    columns = (list(given or [""]) * (number if len(given) < number else 1) for given in (sources, envs, labels))
    return list(zip(*columns, strict=True))


def _write(curves: Mapping[str, Sequence[CurvePoint]], out: Path, plan: EvalPlan) -> None:
    from srpo_train.evaluation.budget_curve import write_curves
    from srpo_train.reporting.budget_figure import draw_budget_curves

    tasks = sum(world.num_tasks for world in plan.worlds.values())
    seeds = f"{'seed' if len(plan.seeds) == 1 else 'seeds'} {', '.join(map(str, plan.seeds))}"
    subtitle = f"{tasks:,} tasks, {plan.samples} samples each, {seeds}"
    write_curves(curves, out / CURVE_FILE)
    draw_budget_curves(curves, out / PICTURE_FILE, samples=plan.samples, subtitle=subtitle)


def _show(curves: Mapping[str, Sequence[CurvePoint]], samples: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from srpo_train.cli._evaluation import percent
    from srpo_train.cli._text import shown

    titles = ("method", "budget", f"Avg@{samples}", f"Pass@{samples}", "tokens", "utility", "out of budget")
    table = Table(*titles, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for method, points in curves.items():
        for point in points:
            told = [percent(value) for value in (point.avg_at_k, point.pass_at_k)]
            spent = [_number(value) for value in (point.tokens_per_query, point.utility)]
            table.add_row(shown(method), f"{point.amount:,}", *told, *spent, percent(point.out_of_budget_share))
    Console().print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
