"""``srpo eval``: score policies on benchmarks, or on the tasks of any environment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from srpo_envs.errors import ConfigError, DatasetError, SrpoError, near_miss
from srpo_train.cli._errors import FAILED
from srpo_train.cli._numbers import whole_numbers

if TYPE_CHECKING:
    from srpo_train.cli._worlds import PolicySource
    from srpo_train.collect import Mode
    from srpo_train.config import EnvConfig
    from srpo_train.engines.base import Engine
    from srpo_train.evaluation import EvalPlan, Results, World

_FEW_TASKS = 64
"""Tasks of an environment that is no benchmark, unless told otherwise: generated sets have no natural end."""
_AT_ONCE = 512
"""Samples under way where models answer, which are quicker together."""
_AT_ONCE_OUTSIDE = 64
"""Samples under way where endpoints or functions answer."""


def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help=(
                "A run, a recipe, a model directory, a hub id, builtin:tiny-team, the URL of an OpenAI-compatible "
                "endpoint, or agent:module:function."
            ),
        ),
    ],
    benchmarks: Annotated[
        str, typer.Option(metavar="A,B", help="Names of benchmarks; `srpo benchmarks` lists them.")
    ] = "",
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Read a benchmark from a local file, not the hub; repeatable."),
    ] = None,
    env: Annotated[str, typer.Option(help="Environment id; a run or recipe has its own.")] = "",
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the environment; repeatable."),
    ] = None,
    split: Annotated[str, typer.Option(help="Short for --arg split=...")] = "",
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "--num-tasks",
            min=0,
            help=f"The first so many tasks; all of a benchmark and {_FEW_TASKS} of anything else when omitted.",
        ),
    ] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task, the k of Avg@k and Pass@k.")] = 1,
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", metavar="N,M", help="Each seed draws other samples of every task.")
    ] = "0",
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most likely token.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus; 1 keeps every token.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Tokens kept; 0 keeps all.")] = 0,
    step: Annotated[int, typer.Option(help="Checkpoint of a run; the newest when omitted.")] = -1,
    engine: Annotated[
        str, typer.Option(help="What samples from models: transformers, vllm, or what the recipe says.")
    ] = "recipe",
    device: Annotated[str, typer.Option(help="Where a model runs; a run says itself.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the evaluation; below the run's evals/, or below evals/, when omitted."),
    ] = None,
    method: Annotated[str, typer.Option(help="Label in tables; the objective of a run when omitted.")] = "",
    is_strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a benchmark whose number of tasks is not the published one.")
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Score policies as Avg@k and Pass@k on benchmarks or on the tasks of an environment, with what the answers cost.

    Every sample is kept in a directory, from which an interrupted evaluation goes on when the same command is given
    again; `srpo replay` and `srpo audit` read it, and `srpo compare` tests two of them against each other. The command
    ends with status 1 if samples were lost to broken surroundings; they are tried again by the same command.
    """
    from srpo_train.cli._evaluation import quiet_failures, show_progress, show_results, summary
    from srpo_train.cli._worlds import find_policies, open_engines, parse_arguments, read_engine_kind
    from srpo_train.engines.base import Sampling
    from srpo_train.evaluation import EvalPlan, run_evaluation
    from srpo_train.run_dir import describe_software

    kind, seed_list = read_engine_kind(engine), whole_numbers("--seeds", seeds)
    policies = find_policies(source, step=step, device=device)
    world = choose_world(policies, env, parse_arguments(arguments or [], split))
    plan = EvalPlan(
        source=policies.source,
        method=method or default_method(policies),
        model=policies.model,
        checkpoint=policies.step,
        worlds=open_worlds(world, benchmarks, data or [], limit),  # what is wrong is known before models are loaded
        samples=samples,
        seeds=seed_list,
        sampling=Sampling(temperature=temperature, top_p=top_p, top_k=top_k),
        software=describe_software(),
    )
    if is_strict:
        _refuse_unexpected_sizes(plan.worlds)
    directory = out or _default_directory(policies, plan, world, limit)
    with quiet_failures(), _saying_what_is_kept(directory), open_engines(policies, kind) as engines:
        mode, max_concurrent = order_of_work(engines)
        with show_progress(samples) as on_progress:
            results = run_evaluation(
                plan,
                directory,
                engines,
                policies.roles,
                mode=mode,
                max_concurrent=max_concurrent,
                on_progress=on_progress,
            )
    if is_json:
        typer.echo(json.dumps({"directory": str(directory), **summary(results)}))
    else:
        show_results(results, directory)
    if _num_lost(results, plan):
        raise typer.Exit(FAILED)


def choose_world(policies: PolicySource, env_id: str, arguments: dict[str, object]) -> EnvConfig:
    """Return the environment asked for; a run's own evaluation environment when none is."""
    from srpo_train.config import EnvConfig

    if env_id:
        return EnvConfig(id=env_id, kwargs=arguments)
    if policies.recipe is None:
        raise ConfigError(
            f"--env: {policies.name!r} is neither a run nor a recipe, and only those have an environment of their own; "
            "`srpo envs` lists them"
        )
    own = policies.recipe.eval_env
    return EnvConfig(id=own.id, kwargs={**own.kwargs, **arguments})


# --- tasks --------------------------------------------------------------------------------------------------------


def open_worlds(world: EnvConfig, benchmarks: str, data: Sequence[str], limit: int) -> dict[str, World]:
    """Open the benchmarks by name, or the environment's own tasks under a name made of its arguments."""
    from srpo_envs.benchmarks import find_benchmark
    from srpo_train.evaluation import World

    names = list(dict.fromkeys(name.strip() for name in benchmarks.split(",") if name.strip()))
    files = _read_data(data, names)
    if not names:
        own = World.open(world.id, world.kwargs, limit=limit or _FEW_TASKS)
        if limit > own.set_size:
            raise ConfigError(f"{limit} tasks to evaluate, but {world.id!r} has {own.set_size}; ask for at most that")
        return {_name_of(world): own}
    worlds = {}
    for name in names:
        benchmark = find_benchmark(name)
        kwargs = benchmark.place_in(world.id, world.kwargs, files.get(name))
        worlds[name] = World.open(world.id, kwargs, limit=limit or None, expected_counts=benchmark.counts)
    return worlds


def _read_data(texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Read ``name=file`` options; paths are made absolute, so that stored samples replay from anywhere."""
    files = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ConfigError(f"--data {text}: expected NAME=FILE, such as --data math500=math500.jsonl")
        if name not in names:
            raise ConfigError(f"--data {text}: {name!r} is not among --benchmarks{near_miss(name, names)}")
        files[name] = Path(path).absolute()
    return files


def _name_of(world: EnvConfig) -> str:
    """A name for an environment's own tasks: its id and its arguments, as long as they are short."""
    name = world.id.rpartition("/")[2]
    told = [name, *(f"{key}={value}" for key, value in sorted(world.kwargs.items()))]
    text = ",".join(told)
    is_plain = len(text) <= 80 and re.fullmatch(r"[\w.,=+-]+", text)
    return text if is_plain else f"{name},{_digest(world.kwargs)}"


def _refuse_unexpected_sizes(worlds: Mapping[str, World]) -> None:
    for name, world in worlds.items():
        if world.has_unexpected_size:
            raise DatasetError(
                f"benchmark {name!r}: {world.set_size} tasks, the published set has {world.expected_tasks}; "
                "get the whole set, or evaluate what there is without --strict"
            )


# --- who and where ------------------------------------------------------------------------------------------------


def default_method(policies: PolicySource) -> str:
    """Return the label of a source in tables."""
    if policies.recipe is None:
        return policies.model
    return policies.recipe.objective.preset if policies.run_dir else "untrained"


def _default_directory(policies: PolicySource, plan: EvalPlan, world: EnvConfig, limit: int) -> Path:
    """A directory that only evaluations share which may be put together."""
    who = f"step-{policies.step}" if policies.run_dir else re.sub(r"[^\w.+-]+", "-", policies.source).strip("-.")
    what = _digest({"plan": plan.identity, "env": world.id, "kwargs": world.kwargs, "limit": limit})
    name = f"{who}-{world.id.rpartition('/')[2]}-k{plan.samples}-{what}"
    return (policies.run_dir or Path()) / "evals" / name


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=3).hexdigest()


def order_of_work(engines: Mapping[str, Engine]) -> tuple[Mode, int]:
    """Return how to collect from engines, and how many samples at once.

    What is under way is lost when the process ends, so there is no more of it than keeps the engines busy.
    """
    from srpo_train.engines.agent import AgentEngine
    from srpo_train.engines.base import StreamingEngine
    from srpo_train.engines.openai import OpenAIEngine

    is_outside = any(isinstance(engine, (AgentEngine, OpenAIEngine)) for engine in engines.values())
    is_streaming = all(isinstance(engine, StreamingEngine) for engine in engines.values())
    return "asynchronous" if is_streaming else "rounds", _AT_ONCE_OUTSIDE if is_outside else _AT_ONCE


@contextlib.contextmanager
def _saying_what_is_kept(directory: Path) -> Iterator[None]:
    """Say, where the body ends early, that it was not for nothing."""
    try:
        yield
    except (SrpoError, OSError, KeyboardInterrupt):
        if any(directory.glob("*/seed-*")):
            typer.echo(f"what was drawn is kept in {directory}; the same command goes on from there", err=True)
        raise


def _num_lost(results: Results, plan: EvalPlan) -> int:
    """Samples of this command that were lost."""
    return sum(results.benchmarks[name].seeds[seed].num_failed for name in plan.worlds for seed in plan.seeds)
