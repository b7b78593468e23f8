"""Runs and evaluations side by side: scores in the paper's layout, costs, paired tests, and what was run on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from srpo_envs.errors import ConfigError, near_miss
from srpo_train.evaluation import SeedResult
from srpo_train.reporting.entries import BEST, LAST, Entry, Facts, read_entries
from srpo_train.reporting.latex import to_latex
from srpo_train.reporting.markdown import to_markdown
from srpo_train.reporting.paired import paired_table
from srpo_train.reporting.paper import ScoreTable, benchmark_label, paper
from srpo_train.reporting.paper_tables import paper_section, quoted_blocks, score_columns
from srpo_train.reporting.rows import Lineup, MethodRow, line_up
from srpo_train.reporting.tables import Block, Cell, Column, Document, Row, Score, Section, Table, mark_best

FORMATS: Mapping[str, tuple[str, Callable[[Document], str]]] = {
    "md": ("comparison.md", to_markdown),
    "latex": ("comparison.tex", to_latex),
}
"""File name and writer of each format."""

_COSTS = (
    ("tokens_per_query", Column(name="tokens"), 0),
    ("prompt_tokens_per_query", Column(name="prompt tokens"), 0),
    ("calls_per_query", Column(name="calls"), 2),
    ("tool_calls_per_query", Column(name="tool calls"), 2),
    ("utility", Column(name="U_tok", better="higher"), 0),
    ("engine_s_per_query", Column(name="engine (s)"), 2),
    ("latency_p50_s", Column(name="P50 (s)", group="Latency"), 2),
    ("latency_p95_s", Column(name="P95 (s)", group="Latency"), 2),
)
"""Name in results, column, decimals."""

_COST_NOTE = (
    "Tokens are those sampled (eq. 8). U_tok is right samples per million sampled tokens (eq. 9). Engine seconds are "
    "summed over calls as if one ran after the other; latency is the critical path of parallel calls."
)


def write_comparison(
    paths: Sequence[Path],
    out: Path,
    *,
    formats: Sequence[str] = ("md",),
    labels: Mapping[Path, str] | None = None,
    with_paper: bool = True,
) -> list[Path]:
    """Write the comparison of runs and evaluations into a folder.

    Args:
        paths: Run directories, evaluation directories, or folders of them.
        out: The folder; made when it is not there.
        formats: Keys of `FORMATS`.
        labels: Method names by path.
        with_paper: Whether the paper's own numbers stand beside.

    Returns:
        The files written.

    Raises:
        ConfigError: an unknown format, a path with nothing to report, or evaluations that do not compare.
        RecordError: a file is damaged, or a run was never evaluated.
    """
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"no format {name!r}{near_miss(name, FORMATS)}")
    document = comparison_document(read_entries(paths, labels), with_paper=with_paper)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for file_name, to_text in (FORMATS[name] for name in formats):
        written.append(out / file_name)
        written[-1].write_text(to_text(document), encoding="utf-8")
    return written


def comparison_document(entries: Sequence[Entry], *, with_paper: bool = True) -> Document:
    """Return the report of what was read.

    Raises:
        ConfigError: the evaluations do not compare.
    """
    lineups = line_up(entries)
    beside = [table for lineup in lineups if with_paper and (table := _paper_table(lineup))]
    sections = [section for lineup in lineups for section in _sections(lineup, beside)]
    sections.append(_facts_section(lineups))
    if with_paper:
        sections.append(paper_section(without=beside))
    num_rows = sum(len(lineup.rows) for lineup in lineups)
    return Document(
        title="Methods compared",
        paragraphs=tuple(_lead(entries, lineups, num_rows, with_paper=with_paper)),
        sections=tuple(sections),
    )


def _lead(entries: Sequence[Entry], lineups: Sequence[Lineup], num_rows: int, *, with_paper: bool) -> list[str]:
    lead = [
        f"{_counted(num_rows, 'line')} from {_counted(len(entries), 'run or evaluation', 'runs and evaluations')}. "
        "Scores are percent; Avg@k is the mean share of right samples, Pass@k the share of queries with at least one. "
        "± is the sample standard deviation over the n training seeds of a line, or over sampling seeds where the line "
        "says so; a single one has no ±. Bold is the best of its column and model, as far as the shown digits tell."
    ]
    if len({entry.samples for entry in entries}) > 1:
        ks = ", ".join(map(str, sorted({entry.samples for entry in entries})))
        lead.append(f"Evaluations with different k ({ks}) stand in tables of their own: Pass@k rises with k.")
    if len(lineups) > 1:
        lead.append("Lines of different tables were not evaluated alike and do not compare.")
    if with_paper:
        lead.append(
            "Lines quoted from the paper are marked so; they were not run here and are paired with nothing that was."
        )
    return lead


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


# --- scores -------------------------------------------------------------------------------------------------------


def _sections(lineup: Lineup, beside: Sequence[ScoreTable]) -> list[Section]:
    if lineup.first.kind == "training":
        return [_training_section(lineup)]
    paired = [table for model in lineup.models if (table := paired_table(lineup, model))]
    k = lineup.first.samples
    return [
        Section(title=f"Benchmarks, k = {k}", tables=(_score_table(lineup, beside), *_cost_tables(lineup))),
        *([Section(title=f"Paired tests, k = {k}", tables=tuple(paired))] if paired else []),
    ]


def _avg(result: SeedResult) -> float | None:
    return result.avg_at_k


def _passed(result: SeedResult) -> float | None:
    return result.pass_at_k


def _score_table(lineup: Lineup, beside: Sequence[ScoreTable]) -> Table:
    """Benchmarks in the paper's order, and its own lines below where it has the very same benchmarks and k."""
    quoted = next((table for table in beside if _matches(table, lineup)), None)
    names = list(quoted.benchmarks) if quoted else list(lineup.benchmarks)
    columns = score_columns([benchmark_label(name) for name in names], lineup.first.samples)
    has_average = len(names) > 1
    columns = columns if has_average else columns[:2]
    blocks = [
        Block(
            title=model,
            rows=mark_best([_score_row(row, names, has_average) for row in lineup.rows if row.model == model], columns),
        )
        for model in lineup.models
    ]
    return Table(
        title=f"Avg@{lineup.first.samples} and Pass@{lineup.first.samples} by benchmark (%)",
        columns=columns,
        blocks=(*blocks, *(quoted_blocks(quoted) if quoted else ())),
        notes=tuple(_score_notes(lineup, has_average)),
    )


def _score_row(row: MethodRow, names: Sequence[str], has_average: bool) -> Row:
    scores = [row.score(name, measure) for name in names for measure in (_avg, _passed)]
    if has_average:
        scores += [row.macro(names, measure) for measure in (_avg, _passed)]
    return Row(name=row.shown_name, cells=tuple(_percent(score) for score in scores))


def _percent(score: Score | None) -> Cell:
    return score.cell(scale=100) if score else Cell()


def _score_notes(lineup: Lineup, has_average: bool) -> list[str]:
    notes = []
    if has_average:
        notes.append(
            "Average is the unweighted mean over the benchmarks shown, taken within each seed; a line that lacks one "
            "of them has none."
        )
    return notes + _fewer_repetitions(lineup) + _partial_sets(lineup) + _lost_samples(lineup)


def _fewer_repetitions(lineup: Lineup) -> list[str]:
    notes = []
    for row in lineup.rows:
        counts = {name: row.num_repetitions(name) for name in lineup.benchmarks}
        short = [f"{benchmark_label(name)} ({n})" for name, n in counts.items() if 0 < n < len(row.replicates)]
        if short:
            notes.append(
                f"{row.shown_name}: fewer seeds of {', '.join(short)}; the average is over those that have all."
            )
    return notes


def _partial_sets(lineup: Lineup) -> list[str]:
    notes = {}
    for row in lineup.rows:
        for entry in row.entries:
            for name, result in entry.benchmarks.items():
                whole = result.expected_tasks or result.set_size
                if result.num_tasks != whole:
                    notes[name] = f"{benchmark_label(name)}: {result.num_tasks} of {whole} tasks."
    return list(notes.values())


def _lost_samples(lineup: Lineup) -> list[str]:
    notes = []
    for row in lineup.rows:
        lost = sum(result.num_failed for name in lineup.benchmarks for result in row.results(name))
        if lost:
            notes.append(f"{row.shown_name}: {_counted(lost, 'sample')} lost to broken surroundings, counted nowhere.")
    return notes


def _paper_table(lineup: Lineup) -> ScoreTable | None:
    return next((table for table in paper().score_tables if _matches(table, lineup)), None)


def _matches(table: ScoreTable, lineup: Lineup) -> bool:
    is_same = set(table.benchmarks) == set(lineup.benchmarks) and table.k == lineup.first.samples
    return lineup.first.kind == "benchmarks" and is_same


# --- evaluation during training -----------------------------------------------------------------------------------


def _training_section(lineup: Lineup) -> Section:
    first = lineup.first
    num_tasks = first.benchmarks[LAST].num_tasks
    return Section(
        title=f"Evaluation during training: {first.task_set}, {num_tasks} tasks, k = {first.samples}",
        tables=(_training_table(lineup), *_cost_tables(lineup)),
    )


def _training_table(lineup: Lineup) -> Table:
    names = (LAST, BEST)
    columns = tuple(
        Column(name=f"{measure}@{lineup.first.samples}", group=name.capitalize(), better="higher")
        for name in names
        for measure in ("Avg", "Pass")
    )
    blocks = tuple(
        Block(
            title=model,
            rows=mark_best([_score_row(row, names, False) for row in lineup.rows if row.model == model], columns),
        )
        for model in lineup.models
    )
    note = (
        "The best evaluation of a run is chosen by Avg@k on the very tasks it is scored on, and so flatters; the last "
        "one does not."
    )
    return Table(
        title="Held-out tasks, last and best evaluation (%)",
        columns=columns,
        blocks=blocks,
        notes=(note, *_lost_samples(lineup)),
    )


# --- costs --------------------------------------------------------------------------------------------------------


def _cost_tables(lineup: Lineup) -> list[Table]:
    """Costs by benchmark, if any; what no method measured has no column."""
    names = (LAST,) if lineup.first.kind == "training" else lineup.benchmarks
    known = {cost for row in lineup.rows for name in names for one in row.results(name) for cost in one.costs}
    shown = [cost for cost in _COSTS if cost[0] in known]
    blocks = [
        Block(title=f"{model} · {benchmark_label(name)}", rows=_cost_rows(lineup, model, name, shown))
        for model in lineup.models
        for name in names
    ]
    table = Table(
        title="Cost of a query (mean over samples)",
        columns=tuple(column for _, column, _ in shown),
        blocks=tuple(block for block in blocks if block.rows),
        notes=(_COST_NOTE,),
    )
    return [table] if shown else []


def _cost_rows(lineup: Lineup, model: str, benchmark: str, shown: Sequence[tuple[str, Column, int]]) -> tuple[Row, ...]:
    found = [row for row in lineup.rows if row.model == model and row.results(benchmark)]
    rows = [
        Row(name=row.shown_name, cells=tuple(_cost_cell(row, benchmark, name, decimals) for name, _, decimals in shown))
        for row in found
    ]
    return mark_best(rows, [column for _, column, _ in shown])


def _cost_cell(row: MethodRow, benchmark: str, name: str, decimals: int) -> Cell:
    score = row.score(benchmark, lambda result: result.costs.get(name))
    return score.cell(decimals=decimals) if score else Cell()


# --- what was run on what -----------------------------------------------------------------------------------------


def _facts_section(lineups: Sequence[Lineup]) -> Section:
    names = ["Directory", *(field.name.replace("_", " ").capitalize() for field in fields(Facts))]
    columns = tuple(Column(name=name, is_text=True) for name in names)
    found: dict[str, list[Row]] = {}
    for lineup in lineups:
        for row in lineup.rows:
            found.setdefault(row.model, []).append(_fact_row(row))
    blocks = tuple(Block(title=model, rows=tuple(rows)) for model, rows in found.items())
    return Section(
        title="What was run on what",
        paragraphs=("Every line above that is not marked as a quotation comes from these directories.",),
        tables=(Table(title="Runs and evaluations", columns=columns, blocks=blocks),),
    )


def _fact_row(row: MethodRow) -> Row:
    """What the entries of a line have in common is said once."""
    columns = [[str(entry.path) for entry in row.entries]]
    columns += [[getattr(entry.facts, field.name) for entry in row.entries] for field in fields(Facts)]
    return Row(name=row.name, cells=tuple(Cell(text="; ".join(dict.fromkeys(texts))) for texts in columns))
