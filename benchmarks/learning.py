"""Held-out accuracy against sampled tokens: seeds of a team and of a single agent, as a table and a picture.

The runs behind docs/results.md are made and compared by::

    for seed in 0 1 2; do
        for world in arithmetic search; do
            srpo train recipes/tiny-$world.toml --set seed=$seed --name $world-team-$seed
            srpo train recipes/tiny-$world-single-agent.toml --set seed=$seed --name $world-single-$seed
        done
    done
    python benchmarks/learning.py team=runs/arithmetic-team-0,runs/arithmetic-team-1,runs/arithmetic-team-2 \
        single=runs/arithmetic-single-0,runs/arithmetic-single-1,runs/arithmetic-single-2 --picture docs/results.png
    python benchmarks/learning.py team=runs/search-team-0,runs/search-team-1,runs/search-team-2 \
        single=runs/search-single-0,runs/search-single-1,runs/search-single-2 --picture docs/results-search.png

Runs that search also get a picture of how many searchers act together and how many queries a question takes, and a
table by kind of question, from the events of their last step. Without runs to compare it makes one short run of each in
a temporary folder (a minute or two) and compares those; ``--world search`` chooses the search recipes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from srpo_envs.records import Episode, read_episodes
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, series

RECIPES = Path(__file__).parent.parent / "recipes"
NUM_SMOOTHED = 10
COLOURS = ("#0f6e6e", "#d1742a", "#5a5ab8", "#8a8f98")


@dataclass(frozen=True)
class Curve:
    """What one run learnt after so many training steps and sampled training tokens."""

    run_dir: Path
    steps: list[int]
    tokens: list[float]
    accuracy: list[float]
    tokens_per_episode: float
    seconds: float


def read_curve(run_dir: Path) -> Curve:
    steps, tokens, accuracy = [], [], []
    sampled = seconds = per_episode = 0.0
    for row in read_metrics(run_dir):
        sampled += row.get("rollout/num_tokens", 0.0)
        seconds += row.get("time/step_s", 0.0)
        if "eval/accuracy" in row:
            steps.append(int(row["step"]))
            tokens.append(sampled)
            accuracy.append(row["eval/accuracy"])
            per_episode = row["eval/num_tokens"] / row["eval/num_episodes"]
    return Curve(run_dir, steps, tokens, accuracy, per_episode, seconds)


def print_accuracy(groups: dict[str, list[Curve]]) -> None:
    table = Table(title="held-out accuracy")
    for name in ("runs", "seed", "start", "step 10", "step 20", "step 40", "end", "training tokens", "tokens/episode"):
        table.add_column(name, justify="left" if name == "runs" else "right")
    for name, curves in groups.items():
        for seed, curve in enumerate(curves):
            at = dict(zip(curve.steps, curve.accuracy, strict=True))
            shown = [f"{at[step]:.3f}" if step in at else "-" for step in (0, 10, 20, 40, curve.steps[-1])]
            table.add_row(name, str(seed), *shown, f"{curve.tokens[-1]:,.0f}", f"{curve.tokens_per_episode:.0f}")
    Console(width=120).print(table)
    for name, curves in groups.items():
        ends = [curve.accuracy[-1] for curve in curves]
        spread = f" ± {statistics.stdev(ends):.3f}" if len(ends) > 1 else ""
        print(f"{name}: {statistics.mean(ends):.3f}{spread} at the end, {len(ends)} run(s)")


def searches(curves: Sequence[Curve]) -> bool:
    return any("eval/env/num_queries" in row for curve in curves for row in read_metrics(curve.run_dir))


def last_episodes(curves: Sequence[Curve]) -> Iterator[Episode]:
    for curve in curves:
        yield from read_episodes(max((curve.run_dir / "events").glob("*.jsonl")))


def print_searches(groups: dict[str, list[Curve]]) -> None:
    """Training questions of the last step, sampled: by kind, what was right and how it was searched for."""
    table = Table(title="the last step by kind of question")
    for name in ("runs", "kind", "right", "queries", "turns", "searchers, turn 1", "turn 2", "stopped by router"):
        table.add_column(name, justify="left" if name in ("runs", "kind") else "right")
    for name, curves in groups.items():
        kinds: dict[str, list[Episode]] = defaultdict(list)
        for episode in last_episodes(curves) if searches(curves) else ():
            kinds[episode.task["info"]["kind"]].append(episode)
        for kind, episodes in kinds.items():
            stopped = [episode.info["stopped_by"] == "router" for episode in episodes]
            table.add_row(
                name,
                kind,
                *(f"{statistics.mean(values):.2f}" for values in zip(*map(_searched, episodes), strict=True)),
                *(_mean(_sizes(episodes, event_type)) for event_type in ("searcher", "refinement")),
                f"{statistics.mean(stopped):.2f}",
            )
    if table.row_count:
        Console(width=120).print(table)


def _searched(episode: Episode) -> tuple[float, float, float]:
    metrics = episode.info["metrics"]
    return float(episode.info["correct"]), metrics["num_queries"], metrics["num_turns"]


def _sizes(episodes: Sequence[Episode], event_type: str) -> list[int]:
    return [event.cardinality for episode in episodes for event in episode.events if event.event_type == event_type]


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f}" if values else "-"


def draw(groups: dict[str, list[Curve]], picture: Path) -> None:
    has_searches = any(map(searches, groups.values()))
    figure, axes = plt.subplots(
        1, 3 if has_searches else 1, figsize=(15, 4.2) if has_searches else (7.5, 4.2), dpi=130, squeeze=False
    )
    for (name, curves), colour in zip(groups.items(), COLOURS, strict=False):
        for number, curve in enumerate(curves):
            look = {"color": colour, "alpha": 0.85, "label": name if number == 0 else None}
            axes[0, 0].plot([count / 1e3 for count in curve.tokens], curve.accuracy, **look)
            if has_searches:
                _draw_searches(axes[0, 1:], curve, look)
    axes[0, 0].set(xlabel="sampled training tokens (thousands)", ylabel="held-out accuracy", ylim=(0, 1.02))
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="best")
    figure.tight_layout()
    figure.savefig(picture)
    plt.close(figure)


def _draw_searches(axes: Sequence[Axes], curve: Curve, look: dict[str, object]) -> None:
    lines = read_metrics(curve.run_dir)
    for event_type, style in (("searcher", "-"), ("refinement", "--")):
        steps, sizes = series(lines, f"rollout/cardinality/{event_type}")
        label = f"{look['label']}, {'first turn' if style == '-' else 'later turns'}" if look["label"] else None
        if steps:
            axes[0].plot(steps, _smooth(sizes), style, **look | {"label": label})
    axes[0].set(xlabel="training step", ylabel=f"searchers per search event (K), mean of {NUM_SMOOTHED} steps")
    axes[1].plot(*series(lines, "eval/env/num_queries"), **look)
    axes[1].set(xlabel="training step", ylabel="held-out queries per question")


def _smooth(values: Sequence[float]) -> list[float]:
    """Mean over the latest steps: which kinds of questions a step draws moves K more than learning does."""
    return [statistics.mean(values[max(0, end - NUM_SMOOTHED) : end]) for end in range(1, len(values) + 1)]


def short_runs(world: str, folder: str) -> dict[str, list[Path]]:
    names = {"team": f"tiny-{world}", "single": f"tiny-{world}-single-agent"}
    overrides = [f"output_dir={folder}", "train.num_steps=10", "log.tensorboard=false"]
    return {name: [train(load_recipe(RECIPES / f"{stem}.toml", overrides))] for name, stem in names.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="NAME=RUN,RUN", help="runs to compare, by name")
    parser.add_argument("--world", choices=("arithmetic", "search"), default="arithmetic", help="of the short runs")
    parser.add_argument("--picture", type=Path, help="write a PNG here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        named = dict(group.split("=", 1) for group in options.groups)
        given = {name: [Path(run) for run in paths.split(",")] for name, paths in named.items()}
        runs = given or short_runs(options.world, folder)
        groups = {name: [read_curve(run) for run in paths] for name, paths in runs.items()}
        print_accuracy(groups)
        print_searches(groups)
        if options.picture:
            draw(groups, options.picture)
            print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
