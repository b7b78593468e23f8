"""``srpo train``: train a team from a recipe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from srpo_train.cli._errors import FAILED

if TYPE_CHECKING:
    from srpo_train.config import Recipe


def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe, or the directory of a run to go on with.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the recipe; repeatable.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the run and its directory, instead of the recipe's.")] = "",
    resume: Annotated[bool, typer.Option(help="Go on from the newest checkpoint of the run.")] = False,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show policies, engines, memory and sizes, and train nothing.")
    ] = False,
    is_on_ray: Annotated[
        bool, typer.Option("--ray", help="Place the run on a Ray cluster, as the recipe's [ray] section says.")
    ] = False,
) -> None:
    """Train a team from a recipe, and write curves and a report at the end.

    A run killed at any moment goes on with --resume, to the same numbers. docs/recipes.md explains every key.
    """
    from srpo_train.cli._worlds import hide_transformers_progress
    from srpo_train.config import load_recipe

    overrides = [*(changes or []), *([f"name={name}"] if name else [])]
    if recipe.is_dir():  # a run may be continued from any working directory, and after it was moved
        place = [f"output_dir={json.dumps(str(recipe.resolve().parent))}", f"name={json.dumps(recipe.resolve().name)}"]
        recipe, overrides = recipe / "recipe.toml", [*place, *overrides]
    resolved = load_recipe(recipe, overrides)
    if is_dry_run:
        _show_plan(resolved, is_on_ray=is_on_ray)
        return
    if is_on_ray:
        from rich.console import Console

        from srpo_train.cli._cluster import train_and_show

        _conclude(resolved, train_and_show(Console(), resolved, resume=resume))
        return

    from srpo_train.distributed.ranks import is_main_process
    from srpo_train.loop import train as run  # after the recipe is known to be good: this imports torch

    hide_transformers_progress()
    run_dir = run(resolved, resume=resume)
    if is_main_process():  # of those that torchrun started, one speaks
        _conclude(resolved, run_dir)


def _conclude(recipe: Recipe, run_dir: Path) -> None:
    typer.echo(f"\n{_outcome(recipe, run_dir)}")
    typer.echo(f"run directory: {run_dir}\nreport:        {run_dir / 'report.md'}")


def _show_plan(recipe: Recipe, *, is_on_ray: bool) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's libraries are imported: a plan downloads nothing
    from rich.console import Console

    from srpo_train.cli._plan import show_plan
    from srpo_train.plan import make_plan

    console = Console()
    show_plan(console, make_plan(recipe))
    if is_on_ray:
        from srpo_train.cli._cluster import show_places
        from srpo_train.cluster.connecting import known_nodes
        from srpo_train.cluster.placement import fit, plan_groups

        groups, nodes = plan_groups(recipe), known_nodes(recipe.ray.address)
        show_places(console, groups, nodes, layout := fit(groups, nodes))
        if layout.missing:
            raise typer.Exit(FAILED)


def _outcome(recipe: Recipe, run_dir: Path) -> str:
    """Say how far the run is, and what it changed on held-out tasks."""
    from srpo_train.metrics import read_metrics, series

    lines = read_metrics(run_dir)
    taken, num_steps = int(lines[-1]["step"]), recipe.train.num_steps
    further = "train.num_steps" if taken >= num_steps else "train.token_budget is used up; a larger one"
    done = f"{recipe.name} is complete: {taken} of {num_steps} training steps ({further} goes further)"
    steps, accuracy = series(lines, "eval/accuracy")
    if len(steps) < 2:
        return done
    return f"{done}\nheld-out accuracy {accuracy[0]:.3f} at step {steps[0]}, {accuracy[-1]:.3f} at step {steps[-1]}"
