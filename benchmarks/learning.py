"""Held-out accuracy against sampled tokens: seeds of the team and of a single agent, as a table and a picture.

The runs behind docs/results.md are made and compared by::

    for seed in 0 1 2; do
        srpo train recipes/tiny-arithmetic.toml --set seed=$seed --name team-$seed
        srpo train recipes/tiny-arithmetic-single-agent.toml --set seed=$seed --name single-$seed
    done
    python benchmarks/learning.py team=runs/team-0,runs/team-1,runs/team-2 \
        single=runs/single-0,runs/single-1,runs/single-2 --picture docs/results.png

Without arguments it makes one short run of each in a temporary folder (about a minute) and compares those.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics

RECIPES = Path(__file__).parent.parent / "recipes"
COLOURS = ("#0f6e6e", "#d1742a", "#5a5ab8", "#8a8f98")


@dataclass(frozen=True)
class Curve:
    """Held-out accuracy of one run after so many training steps and sampled training tokens."""

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
    return Curve(steps, tokens, accuracy, per_episode, seconds)


def print_table(groups: dict[str, list[Curve]]) -> None:
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


def draw(groups: dict[str, list[Curve]], picture: Path) -> None:
    figure, axis = plt.subplots(figsize=(7.5, 4.2), dpi=130)
    for (name, curves), colour in zip(groups.items(), COLOURS, strict=False):
        for number, curve in enumerate(curves):
            thousands = [count / 1e3 for count in curve.tokens]
            axis.plot(thousands, curve.accuracy, color=colour, alpha=0.85, label=name if number == 0 else None)
    axis.set(xlabel="sampled training tokens (thousands)", ylabel="held-out accuracy", ylim=(0, 1.02))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(picture)
    plt.close(figure)


def short_runs(folder: str) -> dict[str, list[Path]]:
    names = {"team": "tiny-arithmetic", "single": "tiny-arithmetic-single-agent"}
    overrides = [f"output_dir={folder}", "train.num_steps=10", "log.tensorboard=false"]
    return {name: [train(load_recipe(RECIPES / f"{stem}.toml", overrides))] for name, stem in names.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="NAME=RUN,RUN", help="runs to compare, by name")
    parser.add_argument("--picture", type=Path, help="write a PNG here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        named = dict(group.split("=", 1) for group in options.groups)
        runs = {name: [Path(run) for run in paths.split(",")] for name, paths in named.items()} or short_runs(folder)
        groups = {name: [read_curve(run) for run in paths] for name, paths in runs.items()}
    print_table(groups)
    if options.picture:
        draw(groups, options.picture)
        print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
