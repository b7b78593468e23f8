"""What a study came to: peak and end of every cell against its controls, with the alarms that were raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from srpo_envs.errors import RecordError
from srpo_train.alarms import Alarms, AlarmsConfig
from srpo_train.metrics import series
from srpo_train.reporting.markdown import table_to_markdown
from srpo_train.reporting.tables import ABSENT, Block, Column, Row, Score, Table, mark_best
from srpo_train.reporting.tables import Cell as Entry
from srpo_train.run_dir import write_whole
from srpo_train.study.figure import draw_study
from srpo_train.study.grid import CONTROL
from srpo_train.sweep.cells import read_run, standing
from srpo_train.sweep.finished import CellResult, by_group, note_on_missing, read_finished

TABLE_FILE = "study.md"
PICTURE_FILE = "study.png"


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """Held-out Avg@k of one finished run over its training."""

    seed: int
    """Its seed."""
    steps: tuple[int, ...]
    """Steps that were evaluated, from 0."""
    scores: tuple[float, ...]
    """Avg@k there."""
    num_tokens: float
    """Sampled training tokens."""
    alarms: tuple[str, ...]
    """Collapses that were raised, in order, each once."""

    @property
    def base(self) -> float:
        """Avg@k before training."""
        return self.scores[0]

    @property
    def peak(self) -> float:
        """Largest Avg@k of all evaluations; above the truth by the luck of the largest of several measurements."""
        return max(self.scores)

    @property
    def final(self) -> float:
        """Avg@k at the end."""
        return self.scores[-1]


@dataclass(frozen=True, kw_only=True)
class StudyResult(CellResult[StudyRun]):
    """A cell of the study and its finished runs; task, model, workflow and sharing are in the cell's settings."""

    @property
    def setting(self) -> tuple[str, str]:
        """Task and model: what the cell shares with its control."""
        return self.cell.settings["task"], self.cell.settings["model"]

    @property
    def is_control(self) -> bool:
        """Whether it is the single agent."""
        return self.cell.settings["workflow"] == CONTROL and not self.cell.settings["sharing"]


def read_study(out: str | Path) -> list[StudyResult]:
    """Return the cells of a study's directory with their finished runs.

    Raises:
        RecordError: it is not the directory of a study.
    """
    found = [StudyResult(cell=result.cell, runs=result.runs) for result in read_finished(out, _read_run)]
    for result in found:
        if not {"task", "model", "workflow", "sharing"} <= set(result.cell.settings):
            raise RecordError(
                f"{out}: cell {result.cell.label!r} is not of a study; use `srpo sweep` for this directory"
            )
    return found


def write_study(out: str | Path) -> Path:
    """Write ``study.md`` and ``study.png`` into a study's directory and return the path of the first.

    Raises:
        RecordError: no run of it is finished.
        MissingExtraError: matplotlib is not installed.
    """
    results = read_study(out)
    finished = [result for result in results if result.runs]
    if not finished:
        raise RecordError(f"{out}: no finished run yet; let one come to its end")
    draw_study(finished, Path(out) / PICTURE_FILE)
    write_whole(Path(out) / TABLE_FILE, table_to_markdown(make_table(results)) + "\n")
    return Path(out) / TABLE_FILE


def make_table(results: Sequence[StudyResult]) -> Table:
    """Return a line for each cell with finished runs, by task and model, the best of each column marked."""
    all_cells, results = results, [result for result in results if result.runs]
    columns = (
        Column(name="before"),
        Column(name="peak", better="higher"),
        Column(name="end", better="higher"),
        Column(name="end - before"),
        Column(name="end - single agent"),
        Column(name="peak - end", better="lower"),
        Column(name="training tokens, thousands"),
        Column(name="alarms (runs)", is_text=True),
    )
    blocks = []
    for group, members in by_group(results).items():
        control = next((result for result in members if result.is_control), None)
        rows = [Row(name=_name(result), cells=_cells(result, control)) for result in members]
        blocks.append(Block(title=group, rows=mark_best(rows, columns)))
    return Table(title="When does training a team pay?", columns=columns, blocks=tuple(blocks), notes=_notes(all_cells))


def _read_run(run_dir: Path) -> StudyRun | None:
    """Return what a run came to; None when it is not finished."""
    if (found := read_run(run_dir)) is None:
        return None
    recipe, lines = found
    steps, scores = series(lines, "eval/avg_at_k")
    if len(steps) < 2 or not standing(recipe).is_finished:
        return None
    return StudyRun(
        seed=recipe.seed,
        steps=tuple(steps),
        scores=tuple(scores),
        num_tokens=sum(series(lines, "rollout/num_tokens")[1]),
        alarms=_collapses(lines),
    )


def _collapses(lines: Iterable[Mapping[str, float]]) -> tuple[str, ...]:
    """Names of the alarms with thresholds that a run raises, whatever its own recipe made of them."""
    alarms = Alarms(AlarmsConfig())
    raised = [alarm.name for line in lines for alarm in alarms.check(line)]
    return tuple(name for name in dict.fromkeys(raised) if name in AlarmsConfig.model_fields)


def _name(result: StudyResult) -> str:
    settings = result.cell.settings
    return f"{settings['workflow']}, {settings['sharing']}" if settings["sharing"] else settings["workflow"]


def _cells(result: StudyResult, control: StudyResult | None) -> tuple[Entry, ...]:
    return (
        result.score(lambda run: run.base).cell(scale=100),
        result.score(lambda run: run.peak).cell(scale=100),
        result.score(lambda run: run.final).cell(scale=100),
        result.score(lambda run: run.final - run.base).cell(scale=100),
        Entry(text=ABSENT) if control is None or control is result else _gap(result, control),
        result.score(lambda run: run.peak - run.final).cell(scale=100),
        result.score(lambda run: run.num_tokens).cell(scale=1e-3, decimals=0),
        Entry(text=_count_alarms(result) or "none"),
    )


def _gap(result: StudyResult, control: StudyResult) -> Entry:
    """Difference of the means at the end; the deviations of the two add as those of independent samples do."""
    mine, other = (item.score(lambda run: run.final) for item in (result, control))
    spread = None
    if mine.spread is not None and other.spread is not None:
        spread = (mine.spread**2 + other.spread**2) ** 0.5
    return Score(mine.mean - other.mean, spread).cell(scale=100)


def _count_alarms(result: StudyResult) -> str:
    counts = Counter(name for run in result.runs for name in run.alarms)
    return ", ".join(f"{name.replace('_', ' ')} ({count})" for name, count in sorted(counts.items()))


def _notes(results: Sequence[StudyResult]) -> tuple[str, ...]:
    seeds = sorted({run.seed for result in results for run in result.runs})
    notes = [
        f"Held-out Avg@k in percent, mean ± sample standard deviation over the seeds {', '.join(map(str, seeds))}. "
        "Before: the model as it starts. Peak: the largest of a run's evaluations, above the truth by the luck of the "
        "largest. The single agent is trained on the same task from the same model."
    ]
    return (*notes, *note_on_missing(results, seeds))
