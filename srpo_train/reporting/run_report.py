"""The report of a run: ``report.md`` with figures from start and end, the curves, and one episode's event audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from srpo_envs.errors import RecordError
from srpo_envs.records import Episode, read_episodes
from srpo_envs.storing import replace_whole, storing
from srpo_train.config import Recipe, load_recipe
from srpo_train.metrics import METRICS_FILE, names_below, read_metrics, series
from srpo_train.reporting.curves import Lines, draw_curves
from srpo_train.reporting.markdown import code, escape

REPORT_FILE = "report.md"
CURVES_FILE = "curves.png"

_ENDS = 5  # training steps averaged at either end: one step's figure is noisy


def write_report(run_dir: str | Path) -> Path:
    """Write ``report.md`` and ``curves.png`` into a run directory, finished or not.

    Returns:
        The path of the report.

    Raises:
        RecordError: the run has no metrics yet.
        ConfigError: its recipe cannot be read.
        MissingExtraError: matplotlib is not installed.
        StorageFullError: there is no room for them.
    """
    run_dir = Path(run_dir)
    recipe = load_recipe(run_dir / "recipe.toml")
    lines = read_metrics(run_dir)
    if not lines:
        raise RecordError(f"{run_dir / METRICS_FILE}: no metrics to report yet; train first")
    with storing(curves := run_dir / CURVES_FILE):
        draw_curves(lines, curves, recipe.name, describe_recipe(recipe))
    report = run_dir / REPORT_FILE
    replace_whole(report, (f"{section}\n".encode() for section in _sections(run_dir, recipe, lines)))
    return report


def _sections(run_dir: Path, recipe: Recipe, lines: Lines) -> Iterator[str]:
    yield f"# {escape(recipe.name)}\n"
    yield f"{escape(describe_recipe(recipe))}. {_headline(recipe, lines)}\n"
    yield f"![Curves of the run]({CURVES_FILE})\n"
    yield "## From start to end\n"
    yield f"Training figures are means of the first and last {_ENDS} steps; evaluation is one evaluation each.\n"
    yield from _table(("metric", "start", "end"), _start_and_end(lines))
    yield "## Where the time went\n"
    yield from _table(("work", "seconds", "share"), _times(lines))
    if (episode := _an_episode(run_dir)) is not None:
        yield from _event_audit(episode)
    yield "## The recipe\n"
    settings = ((key, escape(value)) for key, value in settings_of(recipe).items())
    yield from _table(("key", "value"), settings, align=":---")
    yield from _links(run_dir)


def describe_recipe(recipe: Recipe) -> str:
    """Return environment, policies and objective of a recipe in a line."""
    models = sorted({policy.model for policy in recipe.policies.values()})
    number = len(recipe.policies)
    policies = "one shared policy" if number == 1 else f"{number} policies"
    return f"{recipe.env.id.split('/')[-1]} · {policies} ({', '.join(models)}) · objective {recipe.objective.preset}"


def _headline(recipe: Recipe, lines: Lines) -> str:
    done = int(lines[-1]["step"])
    taken = f"{done} of {recipe.train.num_steps} training steps"
    steps, values = series(lines, "eval/accuracy")
    if len(steps) < 2:
        return f"{taken}."
    span = f"(step {steps[0]} to {steps[-1]})"
    return f"{taken}; held-out accuracy went from **{values[0]:.3f}** to **{values[-1]:.3f}** {span}."


def _start_and_end(lines: Lines) -> Iterator[tuple[str, str, str]]:
    names = ["eval/accuracy", "eval/pass_at_k", "rollout/accuracy", "rollout/reward_mean"]
    names += names_below(lines, "rollout/valid_rate/") + names_below(lines, "rollout/response_length/")
    names += ["train/cardinality_mean", "rollout/event_completeness", "train/grad_norm", "train/clip_fraction"]
    names += ["train/ratio_max", "train/entropy", "rollout/num_tokens", "perf/tokens_per_s"]
    for name in names:
        _, values = series(lines, name)
        if values:
            count = 1 if name.startswith("eval/") else min(_ENDS, len(values))
            yield f"`{name}`", _number(_mean(values[:count])), _number(_mean(values[-count:]))


def _times(lines: Lines) -> Iterator[tuple[str, str, str]]:
    total = sum(series(lines, "time/step_s")[1])
    spent = {
        "generation": sum(series(lines, "time/generate_s")[1]),
        "environments": sum(series(lines, "time/env_s")[1]),
        "update": sum(series(lines, "time/update_s")[1]),
    }
    spent["other"] = max(0.0, total - sum(spent.values()))
    for work, seconds in spent.items():
        yield work, f"{seconds:.1f}", f"{seconds / total:.1%}" if total else "-"
    yield "**all training steps**", f"**{total:.1f}**", ""
    yield "evaluation, on top", f"{sum(series(lines, 'time/eval_s')[1]):.1f}", ""


def _an_episode(run_dir: Path) -> Episode | None:
    """The longest of the first episodes of the newest step, for it shows most; None when no events were saved."""
    files = sorted((run_dir / "events").glob("*.jsonl"))
    if not files:
        return None
    episodes = [episode for episode, _ in zip(read_episodes(files[-1]), range(64), strict=False)]
    return max(episodes, key=lambda episode: len(episode.events), default=None)


def _event_audit(episode: Episode) -> Iterator[str]:
    from srpo_envs.audit import format_event_table

    yield "## One episode, event by event\n"
    yield (
        f"Episode {code(episode.episode_id)}, task {code(episode.task_id)}, team reward {episode.reward:g}. "
        f"Each row is one optimised event; its K outputs share one ratio, one clip and one advantage.\n"
    )
    yield format_event_table(episode) + "\n"


def settings_of(recipe: Recipe) -> dict[str, str]:
    """Return the choices of a recipe that a reader asks for first, by key, in words."""
    evaluation = recipe.eval
    return {
        "env": f"{recipe.env.id} {_written(recipe.env.kwargs)}".strip(),
        "roles": ", ".join(f"{role} -> {policy}" for role, policy in recipe.roles.items()) or "all share one policy",
        "rollout": f"{recipe.rollout.prompts_per_step} prompts x {recipe.rollout.group_size} episodes",
        "objective": f"{recipe.objective.preset} {_written(recipe.objective.overrides())}".strip(),
        "optim": f"lr {recipe.optim.lr:g}, betas {recipe.optim.betas}, {recipe.optim.num_epochs} epoch(s) x "
        f"{recipe.optim.num_minibatches} mini-batch(es), gradient norm at most {recipe.optim.max_grad_norm:g}",
        "eval": f"{evaluation.num_tasks} tasks x {evaluation.samples_per_task} samples every {evaluation.every} steps",
        "seed": str(recipe.seed),
    }


def _written(choices: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in choices.items())


def _links(run_dir: Path) -> Iterator[str]:
    yield "## Files\n"
    yield "- [recipe.toml](recipe.toml), the resolved recipe; train again with `srpo train recipe.toml --name another`"
    yield f"- [{METRICS_FILE}]({METRICS_FILE}), every value of every step; names are explained in docs/metrics.md"
    for folder, use in {
        "checkpoints": "policies in transformers format, with what a resume needs",
        "events": "what was sampled, event by event; `srpo audit` proves that it is whole",
        "tensorboard": "the same curves for `tensorboard --logdir`",
    }.items():
        if (run_dir / folder).is_dir():
            yield f"- [{folder}/]({folder}/), {use}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---:") -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "|".join(" :--- " if column == 0 else f" {align} " for column in range(len(header))) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
