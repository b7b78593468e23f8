"""What a report compares: runs and evaluation directories, read into one form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from srpo_envs.benchmarks import BENCHMARKS
from srpo_envs.errors import ConfigError, RecordError, near_miss
from srpo_train.config import EnvConfig, Recipe, load_recipe
from srpo_train.evaluation import (
    PLAN_FILE,
    RESULTS_FILE,
    BenchmarkResult,
    EvalPlan,
    Results,
    SeedResult,
    read_plan,
    read_results,
)
from srpo_train.metrics import METRICS_FILE, read_metrics
from srpo_train.reporting.grouping import check_labels
from srpo_train.reporting.methods import Choices, choices_of, method_name, model_name, task_set_of
from srpo_train.reporting.tables import ABSENT
from srpo_train.run_dir import RECIPE_FILE, SOFTWARE_FILE

LAST = "last evaluation"
"""Name of a run's own evaluation at its end."""

BEST = "best evaluation"
"""Name of the one with the highest Avg@k."""

_DEPTH = 4  # folders below a folder of runs in which runs are looked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What was run on what, in words."""

    seed: str = ABSENT
    """Of training."""
    trained_on: str = "not trained here"
    """The environment and its arguments."""
    steps: str = ABSENT
    """Training steps taken."""
    evaluated_on: str
    """Tasks, samples and how tokens were drawn."""
    evaluated_at: str = ABSENT
    """The training steps whose weights were evaluated."""
    device: str = ABSENT
    """Where training ran."""
    software: str = ABSENT
    """Versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One run with its own evaluations, or one evaluation directory."""

    path: Path
    """As it was given."""
    kind: Literal["benchmarks", "training"]
    """Whether its scores are of benchmarks, or of the evaluation during training."""
    method: str
    """Name of the method."""
    is_labelled: bool
    """Whether the reader chose that name."""
    model: str
    """Base model."""
    choices: Choices
    """What it has in common with runs that differ by seed alone."""
    seed: int | None
    """Training seed; None where nothing was trained here."""
    samples: int
    """k of Avg@k and Pass@k."""
    task_set: str
    """Name of the tasks, of an evaluation during training."""
    benchmarks: Mapping[str, BenchmarkResult]
    """Results by benchmark; `LAST` and `BEST` of an evaluation during training."""
    facts: Facts
    """What was run on what."""


def read_entries(paths: Sequence[Path], labels: Mapping[Path, str] | None = None) -> list[Entry]:
    """Read runs, evaluation directories, and folders of them.

    A run that has evaluation directories in ``evals/`` is told by these, another one by its evaluation during training.

    Args:
        paths: Where they lie.
        labels: Method names by path, in the place of those that follow from the recipe; one for a folder is for all
            that lies in it.

    Raises:
        ConfigError: a path holds neither, or a label is for a path that is not among `paths`.
        RecordError: a file is damaged, or a run was never evaluated.
    """
    labels = labels or {}
    check_labels(labels, paths)
    return [entry for path in paths for entry in _read(path, labels.get(path, ""))]


def find_runs(path: Path) -> list[Path]:
    """Return the run directories a path stands for: itself, or those in the folders below it that have metrics.

    Raises:
        ConfigError: there is none; names what lies beside it.
    """
    found = [folder for folder in _walk(path) if (folder / RECIPE_FILE).is_file()]
    if found != [path]:
        found = [folder for folder in found if read_metrics(folder)]
    if not found:
        raise _nothing_at(path, f"a run (with {RECIPE_FILE}), or a folder of runs with metrics")
    return found


def find_reported(path: Path) -> list[Path]:
    """Return the runs and evaluations a path stands for: itself, or those below it that have something to report.

    Raises:
        ConfigError: there is none; names what lies beside it.
    """
    found = [folder for folder in _walk(path) if folder == path or is_evaluation(folder) or read_metrics(folder)]
    if not found:
        raise _nothing_at(path, f"a run (with {RECIPE_FILE}), an evaluation (with {RESULTS_FILE}), or a folder of them")
    return found


def is_evaluation(folder: Path) -> bool:
    """Whether a folder is that of an evaluation."""
    return (folder / RESULTS_FILE).is_file()


def was_evaluated(folder: Path) -> bool:
    """Whether a run or evaluation has scores to be compared."""
    return bool(_evaluations(folder)) or any("eval/avg_at_k" in line for line in read_metrics(folder))


def _evaluations(folder: Path) -> list[Path]:
    """The evaluation directories that tell of a folder: itself, or those in a run."""
    if is_evaluation(folder):
        return [folder]
    return sorted(file.parent for file in folder.glob(f"evals/*/{RESULTS_FILE}"))


def _read(path: Path, label: str) -> Iterator[Entry]:
    for folder in find_reported(path):
        evaluations = _evaluations(folder)
        if evaluations:
            yield from (_evaluation_entry(evaluation, label) for evaluation in evaluations)
        else:
            yield _training_entry(folder, label)


def _walk(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Runs and evaluations from a folder on downwards, by name; nothing within them."""
    if _is_run(folder) or is_evaluation(folder):
        yield folder
    elif folder.is_dir() and depth:
        for below in sorted(folder.iterdir()):
            yield from _walk(below, depth - 1)


def _is_run(folder: Path) -> bool:
    return (folder / RECIPE_FILE).is_file()


def _nothing_at(path: Path, expected: str) -> ConfigError:
    if path.is_dir():
        return ConfigError(f"{path}: expected {expected}")
    beside = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    return ConfigError(f"{path}: no such directory{near_miss(path.name, beside)}")


# --- evaluation during training -----------------------------------------------------------------------------------


def _training_entry(run_dir: Path, label: str) -> Entry:
    recipe = load_recipe(run_dir / RECIPE_FILE)
    lines = read_metrics(run_dir)
    if not lines:
        raise RecordError(f"{run_dir / METRICS_FILE}: no metrics to report yet; train first")
    scored = [line for line in lines if "eval/avg_at_k" in line]
    if not scored:
        raise RecordError(
            f"{run_dir}: was never evaluated; train with eval.every above 0, or use srpo eval, and report again"
        )
    identity, task_set = task_set_of(recipe.eval_env)
    best = max(scored, key=lambda line: line["eval/avg_at_k"])
    evaluated = (
        f"{task_set}: {recipe.eval.num_tasks} tasks, k={recipe.eval.samples_per_task}, "
        f"temperature {recipe.eval.temperature:g}"
    )
    when = f"step {scored[-1]['step']:.0f}, best at step {best['step']:.0f}"
    return Entry(
        path=run_dir,
        kind="training",
        method=label or method_name(recipe, lines),
        is_labelled=bool(label),
        model=model_name(recipe),
        choices=choices_of(recipe),
        seed=recipe.seed,
        samples=recipe.eval.samples_per_task,
        task_set=task_set,
        benchmarks={name: _own_result(recipe, line, identity) for name, line in ((LAST, scored[-1]), (BEST, best))},
        facts=Facts(evaluated_on=evaluated, evaluated_at=when, **_training_facts(run_dir, recipe, lines)),
    )


def _own_result(recipe: Recipe, line: Mapping[str, float], identity: str) -> BenchmarkResult:
    """The evaluation in a line of metrics, in the form of a benchmark's."""
    num_episodes = line["eval/num_episodes"]
    costs = {
        "tokens_per_query": line["eval/num_tokens"] / num_episodes,
        "calls_per_query": line["eval/num_calls"] / num_episodes,
        "tool_calls_per_query": line["eval/num_tool_calls"] / num_episodes,
    }
    if "eval/utility" in line:
        costs["utility"] = line["eval/utility"]
    result = SeedResult(
        avg_at_k=line["eval/avg_at_k"],
        pass_at_k=line["eval/pass_at_k"],
        num_samples=int(num_episodes),
        num_failed=int(line["eval/num_failed_episodes"]),
        costs=costs,
        per_task=(),
    )
    num_tasks = recipe.eval.num_tasks
    return BenchmarkResult(
        env_id=recipe.env.id,
        num_tasks=num_tasks,
        set_size=num_tasks,
        expected_tasks=None,
        digest=f"{identity} {num_tasks}",
        seeds={recipe.seed: result},
    )


# --- evaluation directories ---------------------------------------------------------------------------------------


def _evaluation_entry(directory: Path, label: str) -> Entry:
    results = read_results(directory)
    if not any(benchmark.seeds for benchmark in results.benchmarks.values()):
        raise RecordError(f"{directory / RESULTS_FILE}: holds no results yet; let srpo eval finish a benchmark")
    plan = read_plan(directory) if (directory / PLAN_FILE).is_file() else None
    run_dir = _run_of(directory, results.source)
    recipe = load_recipe(run_dir / RECIPE_FILE) if run_dir else None
    lines = read_metrics(run_dir) if run_dir else []
    return Entry(
        path=directory,
        kind="benchmarks",
        method=label or _method_of(results, recipe, lines),
        is_labelled=bool(label),
        model=model_name(recipe) if recipe else results.model,
        choices=_evaluation_choices(results, plan, recipe),
        seed=recipe.seed if recipe else None,
        samples=results.samples,
        task_set="",
        benchmarks={_task_name(name, plan): result for name, result in results.benchmarks.items()},
        facts=_evaluation_facts(results, plan, _training_facts(run_dir, recipe, lines) if run_dir and recipe else {}),
    )


def _task_name(name: str, plan: EvalPlan | None) -> str:
    """A benchmark's name; an environment's own tasks, named after it there, are named after the tasks alone."""
    world = plan.worlds.get(name) if plan else None
    if world is None or name in BENCHMARKS:
        return name
    return task_set_of(EnvConfig(id=world.env_id, kwargs=dict(world.env_kwargs)))[1]


def _method_of(results: Results, recipe: Recipe | None, lines: Sequence[Mapping[str, float]]) -> str:
    """The label the evaluation was given; where it only repeats the preset of a recipe, the name made from that."""
    if recipe and results.method == recipe.objective.preset:
        return method_name(recipe, lines)
    return results.method


def _evaluation_choices(results: Results, plan: EvalPlan | None, recipe: Recipe | None) -> dict[str, Any]:
    who = choices_of(recipe) if recipe else {"model": results.model, "source": results.source}
    how = {f"budget.{name}": value for name, value in (results.budget or {}).items()}
    if plan:
        how |= {f"sampling.{name}": value for name, value in asdict(plan.sampling).items()}
        how |= {"checkpoint": plan.checkpoint} if plan.checkpoint is not None else {}
    return {"method": results.method, **who, **how}


def _evaluation_facts(results: Results, plan: EvalPlan | None, training: Mapping[str, str]) -> Facts:
    num_tasks = ", ".join(f"{_task_name(name, plan)} ({one.num_tasks})" for name, one in results.benchmarks.items())
    seeds = sorted({seed for result in results.benchmarks.values() for seed in result.seeds})
    told = [f"{num_tasks}; k={results.samples}", f"sampling seeds {', '.join(map(str, seeds)) or ABSENT}"]
    if plan:
        told.append(f"temperature {plan.sampling.temperature:g}, top-p {plan.sampling.top_p:g}")
    if results.budget:
        told.append("budget " + ", ".join(f"{name} {value:g}" for name, value in results.budget.items()))
    evaluated = {"evaluated_on": ", ".join(told)}
    if plan and plan.checkpoint is not None:
        evaluated["evaluated_at"] = f"step {plan.checkpoint}"
    software = {"software": _versions(plan.software)} if plan else {}
    return Facts(**{**software, **training, **evaluated})


def _run_of(directory: Path, source: str) -> Path | None:
    """The run an evaluation is of: the one it lies in, else the one it names as its source."""
    holder = directory.absolute().parent.parent if directory.absolute().parent.name == "evals" else None
    return next((folder for folder in (holder, Path(source)) if folder and source and _is_run(folder)), None)


# --- what was run on what -----------------------------------------------------------------------------------------


def _training_facts(run_dir: Path, recipe: Recipe, lines: Sequence[Mapping[str, float]]) -> dict[str, str]:
    software = _software(run_dir)
    devices = ", ".join(sorted({policy.device for policy in recipe.policies.values()}))
    return {
        "seed": str(recipe.seed),
        "trained_on": _world(recipe.env),
        "steps": f"{lines[-1]['step']:.0f} of {recipe.train.num_steps}" if lines else ABSENT,
        "device": f"{devices} ({software.get('platform', 'platform unknown')}), engine {recipe.engine.kind}",
        "software": _versions(software),
    }


def _world(env: EnvConfig) -> str:
    kwargs = ", ".join(f"{key}={value}" for key, value in env.kwargs.items())
    return f"{env.id} {kwargs}".strip()


def _software(run_dir: Path) -> dict[str, Any]:
    """The last start's line; empty for a run that does not say."""
    file = run_dir / SOFTWARE_FILE
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    try:
        return dict(json.loads(lines[-1])) if lines else {}
    except ValueError as error:
        raise RecordError(f"{file}:{len(lines)}: not JSON ({error}); the file is damaged") from error


def _versions(software: Mapping[str, Any]) -> str:
    packages: Mapping[str, str] = software.get("packages", {})
    shown = [f"{name} {packages[name]}" for name in ("srpo", "torch", "transformers", "vllm") if name in packages]
    if revision := software.get("revision"):
        shown.append(f"revision {revision[:12]}{'-dirty' if revision.endswith('-dirty') else ''}")
    return ", ".join(shown) or "unknown"
