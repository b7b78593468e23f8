"""``srpo compare``: two evaluations of the same tasks, with intervals and paired tests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from srpo_train.cli._text import shown

if TYPE_CHECKING:
    from srpo_train.evaluation import Comparison, PairedScore, Results


def compare(
    first: Annotated[Path, typer.Argument(help="Directory of an evaluation.")],
    second: Annotated[Path, typer.Argument(help="Directory of another one, of the same tasks with as many samples.")],
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Test two evaluations against each other on the benchmarks that both have, query by query.

    A difference is second minus first. Its interval and its p-value take the queries as drawn from many of their kind;
    they say nothing of other training runs, which the spread over seeds of training is for.
    """
    from srpo_train.evaluation import compare as compare_results
    from srpo_train.evaluation import read_results

    results = read_results(first), read_results(second)
    comparisons = compare_results(*results)
    if is_json:
        typer.echo(json.dumps([dataclasses.asdict(comparison) for comparison in comparisons]))
        return
    console = Console()
    for label, directory, found in zip("AB", (first, second), results, strict=True):
        console.print(shown(f"{label}: {_described(found)} ({directory})"), soft_wrap=True)
    console.print(_table(comparisons, results[0].samples))
    for comparison in comparisons:
        if comparison.num_unpaired:
            console.print(
                shown(
                    f"{comparison.name}: {comparison.num_unpaired:,} queries left out, of which only one has samples",
                    "yellow",
                )
            )


def _described(results: Results) -> str:
    limits = ", ".join(f"{limit} {amount:g}" for limit, amount in (results.budget or {}).items())
    return f"{results.method}, {results.source}, {f'budget {limits}' if limits else 'no budget'}"


def _table(comparisons: list[Comparison], samples: int) -> Table:
    table = Table("%", "queries", "score", "A", "B", "B - A", "95 %", "p", "test", box=None, header_style="bold")
    for column in table.columns[3:8]:
        column.justify, column.no_wrap = "right", True
    for comparison in comparisons:
        style = "bold" if comparison.name == "macro" else None
        table.add_row(
            shown(comparison.name),
            f"{comparison.num_queries:,}",
            *_cells(f"Avg@{samples}", comparison.avg_at_k),
            style=style,
        )
        table.add_row("", "", *_cells(f"Pass@{samples}", comparison.pass_at_k), style=style)
    return table


def _cells(label: str, score: PairedScore) -> list[str]:
    between = score.interval
    return [
        label,
        f"{100 * score.first:.1f}",
        f"{100 * score.second:.1f}",
        f"{100 * score.difference:+z.1f}",
        f"{100 * between.low:+z.1f}..{100 * between.high:+z.1f}" if between else "-",
        f"{score.p_value:.3f}" if score.p_value >= 0.001 else f"{score.p_value:.0e}",
        score.test,
    ]
