"""The paper's numbers as tables in the paper's layout, which one's own tables share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from srpo_train.reporting.paper import (
    Ablation,
    DynamicsRow,
    Router,
    ScoreTable,
    ToolCalls,
    paper,
)
from srpo_train.reporting.tables import Block, Cell, Column, Row, Score, Section, Table, mark_best


def paper_section(*, without: Iterable[ScoreTable] = ()) -> Section:
    """Return all of the paper's numbers as tables, but for score tables that already stand beside one's own."""
    quoted, left_out = paper(), list(without)
    tables = [score_table(table) for table in quoted.score_tables if table not in left_out]
    tables += [_ablation_table(quoted.ablation), dynamics_table(), _router_table(quoted.router)]
    return Section(
        title="What the paper reports",
        paragraphs=(
            f"Quoted from “{quoted.source.title}” ({quoted.source.authors}). Nothing in this section was run here.",
            *quoted.source.remarks,
        ),
        tables=(*tables, _tool_call_table(quoted.tool_calls)),
    )


def quoted_blocks(table: ScoreTable) -> tuple[Block, ...]:
    """Return a score table's lines by model, marked as quotations."""
    columns = score_columns(table.labels, table.k)
    blocks = []
    for model in dict.fromkeys(row.model for row in table.rows):
        rows = [
            Row(name=row.name, cells=tuple(score.cell() for score in row.scores()))
            for row in table.rows
            if row.model == model
        ]
        blocks.append(Block(title=f"{model}, quoted from the paper ({table.where})", rows=mark_best(rows, columns)))
    return tuple(blocks)


def score_columns(labels: Sequence[str], k: int) -> tuple[Column, ...]:
    """Return Avg@k and Pass@k of each benchmark and of their average."""
    return tuple(
        Column(name=f"{measure}@{k}", group=label, better="higher")
        for label in (*labels, "Average")
        for measure in ("Avg", "Pass")
    )


def score_table(table: ScoreTable) -> Table:
    """Return Table 1 or 2."""
    return Table(title=table.title, columns=score_columns(table.labels, table.k), blocks=quoted_blocks(table))


def dynamics_table(ours: Sequence[DynamicsRow] = (), *, with_paper: bool = True) -> Table:
    """Return the statistics of training runs, one's own first, in the paper's terms."""
    quoted = paper().dynamics
    blocks = [_dynamics_block("", ours)] if ours else []
    if with_paper:
        blocks.append(_dynamics_block(f"{quoted.title}, quoted from the paper ({quoted.where})", quoted.rows))
    return Table(title="Training dynamics", row_heading="Run", columns=DYNAMICS_COLUMNS, blocks=tuple(blocks))


def _dynamics_block(title: str, rows: Sequence[DynamicsRow]) -> Block:
    return Block(title=title, rows=tuple(Row(name=row.run, cells=_dynamics_cells(row)) for row in rows))


DYNAMICS_COLUMNS = (
    Column(name="training score, end"),
    Column(name="best validation Avg@k (%)"),
    Column(name="mean", group="Gradient norm"),
    Column(name="range", group="Gradient norm"),
    Column(name="CV", group="Gradient norm"),
    Column(name="first", group="Active-set size"),
    Column(name="last", group="Active-set size"),
    Column(name="complete events (%)"),
    Column(name="first", group="Cost proxy (tokens)"),
    Column(name="last", group="Cost proxy (tokens)"),
)
"""Of `dynamics_table`."""


def _dynamics_cells(row: DynamicsRow) -> tuple[Cell, ...]:
    completeness = None if row.event_completeness is None else 100 * row.event_completeness
    return (
        _cell(row.last_score, 3),
        _cell(row.best_avg_at_k, 1),
        _cell(row.grad_norm_mean, 1 if (row.grad_norm_mean or 0) >= 10 else 3),
        _range_cell(row),
        _cell(row.grad_norm_cv, 3),
        _cell(row.active_set_first, 3),
        _cell(row.active_set_last, 3),
        _cell(completeness, 1),
        _cell(row.proxy_first, 0 if (row.proxy_first or 0) >= 100 else 1),
        _cell(row.proxy_last, 0 if (row.proxy_last or 0) >= 100 else 1),
    )


def _range_cell(row: DynamicsRow) -> Cell:
    if row.grad_norm_min is None or row.grad_norm_max is None:
        return Cell()
    decimals = 2 if row.grad_norm_max >= 10 else 3
    return Cell(text=f"[{row.grad_norm_min:.{decimals}f}, {row.grad_norm_max:.{decimals}f}]")


def _ablation_table(ablation: Ablation) -> Table:
    columns = (
        Column(name="K"),
        Column(name="Normalization", is_text=True),
        Column(name=f"Avg@{ablation.k}", better="higher"),
        Column(name=f"Pass@{ablation.k}", better="higher"),
    )
    rows = [
        Row(
            name=row.variant,
            cells=(
                Cell(text=str(row.cardinality)),
                Cell(text=row.normalization),
                Score(row.avg_at_k, row.avg_at_k_std).cell(),
                Score(row.pass_at_k, row.pass_at_k_std).cell(),
            ),
        )
        for row in ablation.rows
    ]
    blocks = (Block(title="", rows=mark_best(rows, columns)),)
    title = f"{ablation.title} ({ablation.where})"
    return Table(title=title, row_heading="Variant", columns=columns, blocks=blocks)


def _router_table(router: Router) -> Table:
    columns = (Column(name="mean active-set size"), Column(name=f"Avg@{router.k}"), Column(name=f"Pass@{router.k}"))
    row = Row(
        name="learned router",
        cells=(_cell(router.active_set_last, 3), _cell(router.avg_at_k, 1), _cell(router.pass_at_k, 1)),
    )
    return Table(
        title=f"{router.title} ({router.where})",
        row_heading="Run",
        columns=columns,
        blocks=(Block(title="", rows=(row,)),),
    )


def _tool_call_table(calls: ToolCalls) -> Table:
    columns = (Column(name="fewest"), Column(name="most"))
    rows = tuple(Row(name=row.model, cells=(_cell(row.low, 2), _cell(row.high, 2))) for row in calls.rows)
    return Table(
        title=f"{calls.title} ({calls.where})",
        row_heading="Model",
        columns=columns,
        blocks=(Block(title="", rows=rows),),
    )


def _cell(value: float | None, decimals: int) -> Cell:
    return Cell() if value is None else Score(value).cell(decimals=decimals)
