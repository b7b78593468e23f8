"""``srpo eval``: score a run or a model on held-out tasks."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from srpo_envs.errors import ConfigError

if TYPE_CHECKING:
    from srpo_train.cli._worlds import PolicySource
    from srpo_train.config import EnvConfig
    from srpo_train.evaluation import Evaluation


def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help=(
                "A run, a model directory, a hub id, builtin:tiny-team, the URL of an OpenAI-compatible endpoint, "
                "or agent:module:function."
            ),
        ),
    ],
    env: Annotated[str, typer.Option(help="Environment id; a run has its own.")] = "",
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the environment; repeatable."),
    ] = None,
    split: Annotated[str, typer.Option(help="Short for --arg split=...")] = "",
    num_tasks: Annotated[int, typer.Option(min=1, help="The first so many tasks.")] = 64,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task, the k of Avg@k and Pass@k.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus; 1 keeps every token.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Tokens kept; 0 keeps all.")] = 0,
    step: Annotated[int, typer.Option(help="Checkpoint of a run; the newest when omitted.")] = -1,
    seed: Annotated[int, typer.Option(help="Another seed draws other samples.")] = 0,
    device: Annotated[str, typer.Option(help="Where a model runs; a run says itself.")] = "auto",
    events: Annotated[Path | None, typer.Option(help="Store the episodes in this JSON Lines file.")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Score policies as Avg@k and Pass@k on the tasks of an environment, with what the answers cost."""
    from srpo_train.cli._worlds import find_policies, open_engines, parse_arguments

    policies = find_policies(source, step=step, device=device)
    world = _choose_world(policies, env, parse_arguments(arguments or [], split))

    import srpo_envs
    from srpo_envs.records import write_episodes
    from srpo_train.collect import Collector
    from srpo_train.engines.base import Sampling
    from srpo_train.evaluation import evaluate as run
    from srpo_train.evaluation import require_tasks

    make_env = functools.partial(srpo_envs.make, world.id, **world.kwargs)
    require_tasks(make_env(), num_tasks)  # a wrong argument is known before models are loaded
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    with open_engines(policies) as engines, Progress(console=Console(stderr=True), transient=True) as progress:
        collector = Collector(make_env, engines, policies.roles, seed=seed)
        task = progress.add_task(policies.name)
        try:
            result = run(
                collector,
                num_tasks=num_tasks,
                samples_per_task=samples,
                sampling=sampling,
                seed=seed,
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
        finally:
            collector.close()
    if events is not None:
        write_episodes(events, result.episodes)
    _show(result, f"{policies.name} on {world.id} {world.kwargs or ''}", samples, is_json=is_json)


def _choose_world(policies: PolicySource, env_id: str, arguments: dict[str, object]) -> EnvConfig:
    """The environment asked for; a run's own evaluation environment when none is."""
    from srpo_train.config import EnvConfig

    if env_id:
        return EnvConfig(id=env_id, kwargs=arguments)
    if policies.recipe is None:
        raise ConfigError(
            f"--env: {policies.name!r} is not the directory of a run, and only a run has an environment of its own; "
            "`srpo envs` lists them"
        )
    own = policies.recipe.eval_env
    return EnvConfig(id=own.id, kwargs={**own.kwargs, **arguments})


def _show(result: Evaluation, title: str, samples: int, *, is_json: bool) -> None:
    from srpo_train.metrics import meaning_of

    if is_json:
        typer.echo(json.dumps({"source": title, "samples_per_task": samples, **result.metrics}))
        return
    table = Table("metric", "value", "meaning", box=None, header_style="bold", pad_edge=False)
    table.columns[1].justify = "right"
    for name, value in result.metrics.items():
        table.add_row(f"[cyan]{name}", f"{value:,.4g}" if value < 1000 else f"{value:,.0f}", f"[dim]{meaning_of(name)}")
    console = Console()
    console.print(title, style="bold", markup=False)
    console.print(table)
