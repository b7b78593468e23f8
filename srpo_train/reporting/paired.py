"""Paired tests: methods evaluated on the same tasks, each against the first one given."""

from __future__ import annotations

from srpo_train.evaluation.comparison import Comparison, PairedScore, compare
from srpo_train.reporting.paper import benchmark_label
from srpo_train.reporting.rows import Lineup, MethodRow
from srpo_train.reporting.tables import Block, Cell, Column, Row, Score, Table

_NOTE = (
    "Δ is a method's score less that of the first method given, over the queries both have samples of, each query "
    "averaged over its seeds. Intervals are bootstrapped over queries; p is two-sided, of a sign-flip test over "
    "queries (of McNemar's for Pass@k of two single evaluations), and not adjusted for the number of tests. Both speak "
    "of other queries of the kind; only seeds speak of other training runs."
)


def paired_table(lineup: Lineup, model: str) -> Table | None:
    """Return the tests of each method of a model against the first; None where no two share a benchmark."""
    rows = [row for row in lineup.rows if row.model == model]
    blocks = tuple(block for row in rows[1:] if (block := _block(lineup, rows[0], row)))
    if not blocks:
        return None
    k = lineup.first.samples
    tests = (
        Column(name=name, group=group) for group in (f"Avg@{k}", f"Pass@{k}") for name in ("Δ", "95% interval", "p")
    )
    return Table(
        title=f"Differences on {model}, in points",
        row_heading="Benchmark",
        columns=(Column(name="queries"), *tests),
        blocks=blocks,
        notes=(_NOTE,),
    )


def _block(lineup: Lineup, reference: MethodRow, row: MethodRow) -> Block | None:
    shared = [name for name in lineup.benchmarks if reference.results(name) and row.results(name)]
    if not shared:
        return None
    found = compare(reference.pooled(shared), row.pooled(shared))
    return Block(title=f"{row.shown_name}, against {reference.shown_name}", rows=tuple(map(_row, found)))


def _row(item: Comparison) -> Row:
    name = "Average" if item.name == "macro" else benchmark_label(item.name)
    queries = Cell(text=f"{item.num_queries:,}")
    return Row(name=name, cells=(queries, *_test(item.avg_at_k), *_test(item.pass_at_k)))


def _test(score: PairedScore) -> tuple[Cell, Cell, Cell]:
    found = score.interval
    return (
        Score(score.difference).cell(scale=100),
        Cell(text=f"[{100 * found.low:.1f}, {100 * found.high:.1f}]") if found else Cell(),
        Cell(text="< 0.001" if score.p_value < 0.001 else f"{score.p_value:.3f}"),
    )
