"""Modes side by side on clusters of several sizes: a table of outcomes, a file, a picture."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from srpo_envs.errors import ConfigError
from srpo_train.reporting.drawing import COLORS, as_percent, from_zero, legend, titled_figure
from srpo_train.simulation.cluster import Outcome, simulate
from srpo_train.simulation.scenario import Mode, Scenario
from srpo_train.simulation.workload import Workload

_WIDTH, _HEIGHT = 16.0, 4.3  # inches


def compare_modes(
    scenario: Scenario,
    modes: Sequence[Mode],
    gpus: Sequence[int],
    *,
    prompts_per_gpu: float = 0.0,
    sampling_share: float = 0.0,
    workload: Workload | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Simulate every mode on every size of cluster.

    Args:
        scenario: Everything but the number of GPUs.
        modes: Who waits for whom.
        gpus: Sizes of the cluster.
        prompts_per_gpu: Lets the batch grow with the cluster; 0 keeps that of the scenario.
        sampling_share: Share of the GPUs that sample, rounded to whole engines; 0 takes the best division for each.
        workload: Where episodes come from; None draws them as the scenario says.
        on_outcome: Told of each outcome as it is there.

    Raises:
        ConfigError: a cluster has no GPU, no engine or no trainer.
    """
    outcomes = []
    unit = scenario.engine.gpus
    for num_gpus in gpus:
        if num_gpus < 1:
            raise ConfigError(f"a cluster of {num_gpus} GPUs: expected at least 1")
        sizes: dict[str, int] = {"gpus": num_gpus}
        if prompts_per_gpu:
            sizes["prompts_per_step"] = max(1, round(prompts_per_gpu * num_gpus))
        num_sampling = unit * round(sampling_share * num_gpus / unit) if sampling_share else None
        for mode in modes:
            outcomes.append(simulate(scenario.model_copy(update=sizes), mode, num_sampling, workload))
            on_outcome(outcomes[-1])
    return outcomes


def write_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write one line per outcome."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Outcome)])
        writer.writeheader()
        writer.writerows(asdict(outcome) for outcome in outcomes)


def draw_outcomes(outcomes: Sequence[Outcome], path: Path, *, subtitle: str = "") -> None:
    """Draw speed, use, step time and lag against the size of the cluster, a colour for each mode.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    modes = list(dict.fromkeys(outcome.mode for outcome in outcomes))
    with titled_figure("What a cluster makes of its time", subtitle, width=_WIDTH, height=_HEIGHT) as figure:
        margins = {"left": 0.04, "right": 0.988, "top": 1 - 1.05 / _HEIGHT, "bottom": 0.55 / _HEIGHT}
        panels = [figure.add_subplot(cell) for cell in figure.add_gridspec(1, 4, **margins, wspace=0.24)]
        _draw(panels[0], outcomes, modes, "Trained tokens per second and GPU", lambda o: o.tokens_per_gpu_s)
        _draw(panels[1], outcomes, modes, "GPU time in use", lambda o: o.utilisation)
        _draw(panels[2], outcomes, modes, "Seconds per training step", lambda o: o.step_s)
        _draw(panels[3], outcomes, modes, "GPUs that sample, share of all", lambda o: o.num_rollout_gpus / o.num_gpus)
        for panel in (panels[1], panels[3]):
            as_percent(panel)
        legend(panels[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _draw(
    panel: Any, outcomes: Sequence[Outcome], modes: Sequence[str], title: str, value: Callable[[Outcome], float]
) -> None:
    from matplotlib.ticker import NullLocator

    panel.set_title(title)
    for number, mode in enumerate(modes):
        points = [(outcome.num_gpus, value(outcome)) for outcome in outcomes if outcome.mode == mode]
        panel.plot(*zip(*points, strict=True), "o-", color=COLORS[number % len(COLORS)], markersize=4, label=mode)
    sizes = sorted({outcome.num_gpus for outcome in outcomes})
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("GPUs")
    from_zero(panel)
