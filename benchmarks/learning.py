"""Held-out accuracy against sampled tokens, run by run: a sweep's course of learning, as a table and a picture.

What the longer runs of docs/results.md came to is the sweeps' own table; their courses are shown by::

    srpo sweep sweeps/longer-arithmetic.toml
    python benchmarks/learning.py runs/longer-arithmetic --picture docs/results.png
    srpo sweep sweeps/longer-search.toml
    python benchmarks/learning.py runs/longer-search --picture docs/results-search.png

Runs that search also get a picture of how many searchers act together and how many queries a question takes, and a
table by kind of question, from the events of their last step. Without a sweep it trains a short one, one run of a team
and one of a single agent, in a temporary folder (a minute or two); ``--world search`` chooses the search recipes.
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
from srpo_train.metrics import read_metrics, series
from srpo_train.sweep import claim, list_runs, load_sweep, read_cells, run_all

SWEEPS = Path(__file__).parent.parent / "sweeps"
SHORT = {"train": {"num_steps": 10}, "log": {"tensorboard": False}}
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
    for name in ("runs", "run", "start", "step 10", "step 20", "step 40", "end", "training tokens", "tokens/episode"):
        table.add_column(name, justify="left" if name == "runs" else "right")
    for name, curves in groups.items():
        for curve in curves:
            at = dict(zip(curve.steps, curve.accuracy, strict=True))
            shown = [f"{at[step]:.3f}" if step in at else "-" for step in (0, 10, 20, 40, curve.steps[-1])]
            costs = f"{curve.tokens[-1]:,.0f}", f"{curve.tokens_per_episode:.0f}"
            table.add_row(name, curve.run_dir.name, *shown, *costs)
    Console(width=120).print(table)


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


def short_sweep(world: str, folder: str) -> Path:
    sweep = load_sweep(SWEEPS / f"longer-{world}.toml", changes={"out": folder, "set": SHORT, "seeds": (0,)})
    runs = list_runs(sweep)
    with claim(folder, runs):
        for outcome in run_all(runs, processes=sweep.processes):
            if not outcome.is_finished:
                raise SystemExit(f"{outcome.run.name}: {outcome.reason}\n{outcome.tail}")
    return Path(folder)


def curves_of(out: Path) -> dict[str, list[Curve]]:
    """The curves of every cell of a sweep, by its label."""
    return {
        cell.label: [read_curve(run_dir) for run_dir in sorted((out / cell.folder).glob("seed-*"))]
        for cell in read_cells(out)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="?", type=Path, help="directory of a sweep")
    parser.add_argument("--world", choices=("arithmetic", "search"), default="arithmetic", help="of the short sweep")
    parser.add_argument("--picture", type=Path, help="write a PNG here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        groups = curves_of(options.sweep or short_sweep(options.world, folder))
        print_accuracy(groups)
        print_searches(groups)
        if options.picture:
            draw(groups, options.picture)
            print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
