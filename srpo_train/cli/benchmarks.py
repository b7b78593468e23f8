"""``srpo benchmarks``: the benchmarks by name, and whether a file holds what it should."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from srpo_envs.errors import ConfigError
from srpo_train.cli._errors import FAILED

if TYPE_CHECKING:
    from srpo_envs.benchmarks import Benchmark


def benchmarks(
    check: Annotated[
        str, typer.Option(metavar="NAME", help="Load this one and hold it against what was published.")
    ] = "",
    path: Annotated[Path | None, typer.Option(help="A local file that holds it; the hub when omitted.")] = None,
) -> None:
    """List the benchmarks of `srpo eval --benchmarks`, or check one: its number of tasks and a digest of them."""
    from srpo_envs.benchmarks import find_benchmark

    console = Console()
    if check:
        if not _check(console, find_benchmark(check), path):
            raise typer.Exit(FAILED)
        return
    if path is not None:
        raise ConfigError(f"--path {path}: say which benchmark it holds with --check NAME")
    _list(console)


def _list(console: Console) -> None:
    from srpo_envs.benchmarks import BENCHMARK_FAMILIES, BENCHMARKS

    table = Table(
        "name", "benchmark", "kind", "tasks", "hub id", "split", box=None, header_style="bold", pad_edge=False
    )
    table.columns[3].justify = "right"
    table.columns[4].overflow = "fold"
    for benchmark in BENCHMARKS.values():
        table.add_row(
            f"[cyan]{benchmark.name}",
            benchmark.title,
            benchmark.group,
            " or ".join(f"{count:,}" for count in benchmark.counts),
            ", ".join(filter(None, (benchmark.published.hub_id, benchmark.published.config))),
            benchmark.split,
        )
    console.print(table)
    for name, family in BENCHMARK_FAMILIES.items():
        members = [item for item in BENCHMARKS.values() if item.family == name]
        console.print(f"\n{', '.join(item.name for item in members)}", style="bold", soft_wrap=True)
        for what, text in (
            ("asked", family.prompt),
            ("right", family.grading),
            ("played by", ", ".join(item.rpartition("/")[2] for item in members[0].environments)),
        ):
            console.print(f"  {what}: {text}", markup=False, highlight=False, soft_wrap=True)


def _check(console: Console, benchmark: Benchmark, path: Path | None) -> bool:
    """Say what was found; whether it is the published number of tasks."""
    from srpo_envs.benchmarks import all_tasks, digest_tasks

    tasks = benchmark.load(path)
    is_whole = tasks.num_tasks in benchmark.counts
    expected = " or ".join(f"{count:,}" for count in benchmark.counts)
    console.print(
        f"{benchmark.name}: {tasks.num_tasks:,} tasks, {'as published' if is_whole else f'expected {expected}'}",
        style="green" if is_whole else "red",
        highlight=False,
    )
    console.print(f"digest {digest_tasks(all_tasks(tasks))}", highlight=False, soft_wrap=True)
    first = tasks.task(0)
    console.print(f"first: {first.question!r:.200}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"gold:  {' | '.join(first.golds)!r:.200}", markup=False, highlight=False, soft_wrap=True)
    return is_whole
