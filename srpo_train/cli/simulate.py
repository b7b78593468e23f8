"""``srpo simulate``: what a cluster would make of its time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from srpo_envs.errors import ConfigError

if TYPE_CHECKING:
    from srpo_train.simulation.cluster import Outcome
    from srpo_train.simulation.scenario import Scenario
    from srpo_train.simulation.workload import Workload

_COLUMNS = ("GPUs", "mode", "sampling", "s / step", "tok/s/GPU", "in use", "idle", "waits", "rows", "lag")

_WIDTH = 96


def simulate(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO]", help="A TOML file; left out, a model of 7 billion parameters."),
    ] = None,
    gpus: Annotated[
        str, typer.Option(metavar="N,M", help="Sizes of the cluster; left out, that of the scenario.")
    ] = "",
    modes: Annotated[
        list[str] | None, typer.Option("--mode", help="Such as 'in turn' or 'lag 2, early start'; repeatable.")
    ] = None,
    prompts_per_gpu: Annotated[
        float, typer.Option(min=0, help="Let the batch grow with the cluster; 0 keeps that of the scenario.")
    ] = 0.0,
    sampling_share: Annotated[
        float, typer.Option("--sampling", min=0, max=1, help="Share of the GPUs that sample; 0 looks for the best.")
    ] = 0.0,
    run: Annotated[
        Path | None, typer.Option(help="Take episodes from this run's records, and its speeds where it has them.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the scenario; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for simulation.csv and simulation.png.")] = None,
) -> None:
    """Predict step time and use of a cluster in every mode of overlap, and the best division of its GPUs.

    *sampling* is the number of GPUs that sample, *idle* the share of their time without work, *waits* that of the
    training GPUs, *rows* the responses a GPU decodes at once, *lag* the updates between sampling and training, on
    average and at most.
    """
    from rich.console import Console
    from rich.table import Table

    from srpo_train.cli._numbers import whole_numbers
    from srpo_train.simulation.comparison import compare_modes, draw_outcomes, write_outcomes
    from srpo_train.simulation.scenario import MODE_NAMES, load_scenario, mode_named

    settings = load_scenario(scenario, overrides or [])
    workload = None
    if run:
        settings, workload = _measured(settings, run, overrides or [])
    table = Table(*_COLUMNS, box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column.header == "mode" else "right"
    outcomes = compare_modes(
        settings,
        [mode_named(name) for name in modes or MODE_NAMES],
        whole_numbers("--gpus", gpus, "8,64,512") if gpus else [settings.gpus],
        prompts_per_gpu=prompts_per_gpu,
        sampling_share=sampling_share,
        workload=workload,
        on_outcome=lambda outcome: table.add_row(*_cells(outcome)),
    )
    console = Console()
    console.width = max(console.width, _WIDTH)  # rows that are folded or cut say nothing
    console.print(table)
    if out:
        write_outcomes(outcomes, out / "simulation.csv")
        draw_outcomes(outcomes, out / "simulation.png", subtitle=f"simulated; {scenario or run or 'default scenario'}")
        typer.echo(f"written: {out / 'simulation.csv'}, {out / 'simulation.png'}")


def _measured(settings: Scenario, run: Path, overrides: list[str]) -> tuple[Scenario, Workload]:
    """Take a run's episodes, and its speeds unless an override or a missing record says otherwise."""
    from srpo_train.simulation.calibration import measured_speeds
    from srpo_train.simulation.workload import RecordedWorkload

    workload = RecordedWorkload.of_run(run)
    try:
        speeds = measured_speeds(run)
    except ConfigError as error:
        typer.echo(f"speeds are those of the scenario: {error}", err=True)
        return settings, workload
    given = {override.partition("=")[0].strip() for override in overrides}
    engine = {"step_s": speeds.step_s, "step_s_per_row": speeds.step_s_per_row, "prefill_s_per_token": 0.0}
    update = {"gpu_s_per_token": speeds.update_s_per_token, "step_s": 0.0}
    sections: dict[str, Any] = {}
    for section, values in (("engine", engine), ("update", update)):
        free = {name: value for name, value in values.items() if f"{section}.{name}" not in given}
        sections[section] = getattr(settings, section).model_copy(update=free)
    return settings.model_copy(update=sections), workload


def _cells(outcome: Outcome) -> list[str]:
    return [
        f"{outcome.num_gpus:,}",
        outcome.mode,
        f"{outcome.num_rollout_gpus:,}",
        f"{outcome.step_s:.3g}",
        f"{outcome.tokens_per_gpu_s:,.0f}",
        f"{outcome.utilisation:.0%}",
        f"{outcome.rollout_idle:.0%}",
        f"{outcome.train_idle:.0%}",
        f"{outcome.rows:.0f}",
        f"{outcome.lag_mean:.1f} ({outcome.lag_max})",
    ]
