"""The report to send around: one HTML page with curves, tables, alarms and episodes of any number of runs.

    write_page([Path("runs/srpo-0"), Path("runs/grpo-0")], Path("reports/report.html"))

The page needs nothing but itself: no script, no link to elsewhere, pictures as SVG within it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from srpo_envs.audit import episode_files
from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode, read_episodes
from srpo_train.alarms import Alarm, Alarms
from srpo_train.config import Recipe, load_recipe
from srpo_train.event_log import step_of
from srpo_train.metrics import read_metrics, series
from srpo_train.reporting.charts import AXES, Axis, ChartGroup, chart_groups
from srpo_train.reporting.comparison import comparison_document
from srpo_train.reporting.entries import find_reported, is_evaluation, read_entries, was_evaluated
from srpo_train.reporting.grouping import check_labels
from srpo_train.reporting.html import to_html
from srpo_train.reporting.run_report import describe_recipe, settings_of
from srpo_train.reporting.tables import Block, Cell, Column, Row, Section, Table
from srpo_train.run_dir import RECIPE_FILE, write_whole
from srpo_train.showcase import choose_episodes
from srpo_train.viewer.credit import credits_of
from srpo_train.viewer.learned import learned_step
from srpo_train.viewer.runs import RunPlace
from srpo_train.viewer.timeline import EventCredit, Timeline, build_timeline

_LOOKED_AT = 2000  # newest episodes of a run among which those to show are chosen
_MAX_TEXT = 8000  # characters of one text
_FLAT_SHOWN = 12  # metrics without a chart that are named


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """Charts with several runs in each."""

    title: str
    """The heading."""
    axis: str
    """What they are drawn against."""
    runs: tuple[str, ...]
    """Names, in the order of their colours."""
    groups: tuple[ChartGroup, ...]
    """Charts."""
    notes: tuple[str, ...]
    """Sentences below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episodes:
    """Episodes of one run or evaluation as time lines."""

    title: str
    """The heading."""
    note: str
    """Where they come from."""
    shown: tuple[tuple[str, Timeline], ...]
    """Why each is shown, and the episode."""


Part = Section | Curves | Episodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """All that a page holds."""

    title: str
    """On top."""
    paragraphs: tuple[str, ...]
    """Below it."""
    parts: tuple[Part, ...]
    """In order."""


def write_page(
    paths: Sequence[Path],
    file: Path,
    *,
    labels: Mapping[Path, str] | None = None,
    with_paper: bool = True,
    axis: Axis = "step",
    num_episodes: int = 6,
    seed: int = 0,
) -> Path:
    """Write the page of runs, evaluations, or folders of them.

    Args:
        paths: Where they lie.
        file: Where the page goes.
        labels: Names by path, in the place of those that follow from recipe and folder.
        with_paper: Whether the paper's own numbers stand beside.
        axis: What curves are drawn against.
        num_episodes: Episodes shown of each.
        seed: Another one shows other episodes besides the remarkable ones.

    Returns:
        The file.

    Raises:
        ConfigError: a path with nothing to report, or evaluations that do not compare.
        RecordError: a file is damaged.
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    labels = labels or {}
    check_labels(labels, paths)
    found = {folder: labels.get(path, "") for path in paths for folder in find_reported(path)}
    sources = _named([_Source(folder, label) for folder, label in found.items()])
    page = Page(
        title=_title(sources),
        paragraphs=tuple(_lead(sources)),
        parts=tuple(_parts(sources, with_paper=with_paper, axis=axis, num_episodes=num_episodes, seed=seed)),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, to_html(page))
    return file


class _Source:
    """A run or an evaluation, read when it is asked for."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder = folder
        self.label = label
        self.is_run = not is_evaluation(folder)

    @cached_property
    def recipe(self) -> Recipe:
        return load_recipe(self.folder / RECIPE_FILE)

    @cached_property
    def lines(self) -> list[dict[str, float]]:
        return read_metrics(self.folder)

    @cached_property
    def alarms(self) -> list[tuple[int, Alarm]]:
        watch = Alarms(self.recipe.alarms)
        return [(int(line["step"]), alarm) for line in self.lines for alarm in watch.check(line)]


_Sources = Mapping[str, _Source]


def _named(sources: Sequence[_Source]) -> dict[str, _Source]:
    """Sources by a name each: its label or folder, and as much of the path as tells it from others."""
    named: dict[str, _Source] = {}
    for source in sources:
        name = source.label or source.folder.resolve().name
        is_double = sum(name == (other.label or other.folder.resolve().name) for other in sources) > 1
        named[f"{name} ({source.folder})" if is_double else name] = source
    return named


def _title(sources: _Sources) -> str:
    if len(sources) == 1:
        return f"Report of {next(iter(sources))}"
    kinds = {source.is_run for source in sources.values()}
    kind = "runs and evaluations" if len(kinds) > 1 else "runs" if True in kinds else "evaluations"
    return f"Report of {len(sources)} {kind}"


def _lead(sources: _Sources) -> Iterator[str]:
    (first, *others) = sources.values()
    if not others and first.is_run:
        yield f"{describe_recipe(first.recipe)}."
    else:
        yield ", ".join(sources)


def _parts(sources: _Sources, *, with_paper: bool, axis: Axis, num_episodes: int, seed: int) -> Iterator[Part]:
    runs = {name: source for name, source in sources.items() if source.is_run}
    if runs:
        yield _overview(runs)
    if any(source.lines for source in runs.values()):
        yield _curves(runs, axis)
    if runs:
        yield _alarms(runs)
    evaluated = {source.folder: source.label for source in sources.values() if was_evaluated(source.folder)}
    if evaluated:
        labels = {folder: label for folder, label in evaluated.items() if label}
        yield from comparison_document(read_entries(list(evaluated), labels), with_paper=with_paper).sections
    if runs:
        yield _recipes(runs)
    for name, source in sources.items():
        if num_episodes and episode_files(source.folder):
            yield _episodes(name, source, num_episodes, seed)


# --- runs ---------------------------------------------------------------------------------------------------------


def _overview(runs: _Sources) -> Section:
    columns = (
        Column(name="steps"),
        Column(name="first", group="Held-out Avg@k"),
        Column(name="best", group="Held-out Avg@k"),
        Column(name="last", group="Held-out Avg@k", better="higher"),
        Column(name="sampled tokens"),
        Column(name="hours"),
        Column(name="alarms"),
    )
    rows = tuple(Row(name=name, cells=tuple(_overview_cells(run))) for name, run in runs.items())
    table = Table(title="The runs", row_heading="Run", columns=columns, blocks=(Block(title="", rows=rows),))
    return Section(title="At a glance", tables=(table,))


def _overview_cells(run: _Source) -> Iterator[Cell]:
    done = int(run.lines[-1]["step"]) if run.lines else 0
    _, accuracy = series(run.lines, "eval/avg_at_k")
    yield Cell(text=f"{done} of {run.recipe.train.num_steps}")
    for value in (accuracy[0], max(accuracy), accuracy[-1]) if accuracy else ():
        yield Cell(text=f"{value:.3f}")
    if not accuracy:
        yield from (Cell(), Cell(), Cell())
    yield Cell(text=f"{sum(series(run.lines, 'rollout/num_tokens')[1]):,.0f}")
    yield Cell(text=f"{sum(series(run.lines, 'time/step_s')[1]) / 3600:.2f}")
    yield Cell(text=str(len(run.alarms)))


def _curves(runs: _Sources, axis: Axis) -> Curves:
    groups, flat = chart_groups([run.lines for run in runs.values()], axis)
    notes = []
    if flat:
        told = [f"{name} = {value:g}" for name, value in flat.items()]
        more = f" and {len(told) - _FLAT_SHOWN} more" if len(told) > _FLAT_SHOWN else ""
        notes.append(f"Without a picture, because they never changed: {', '.join(told[:_FLAT_SHOWN])}{more}.")
    return Curves(title="Curves", axis=AXES[axis], runs=tuple(runs), groups=tuple(groups), notes=tuple(notes))


def _alarms(runs: _Sources) -> Section:
    rows = tuple(
        Row(name=name, cells=(Cell(text=str(step)), *map(_words, (alarm.name, alarm.subject, alarm.message))))
        for name, run in runs.items()
        for step, alarm in run.alarms
    )
    if not rows:
        return Section(title="Alarms", paragraphs=("No alarm was raised.",))
    columns = (
        Column(name="step"),
        Column(name="alarm", is_text=True),
        Column(name="role", is_text=True),
        Column(name="what was seen", is_text=True),
    )
    table = Table(
        title="When training went wrong", row_heading="Run", columns=columns, blocks=(Block(title="", rows=rows),)
    )
    return Section(title="Alarms", tables=(table,))


def _recipes(runs: _Sources) -> Section:
    """A line for each choice, a column for each run."""
    settings = [settings_of(run.recipe) for run in runs.values()]
    columns = tuple(Column(name=name, is_text=True) for name in runs)
    rows = tuple(Row(name=key, cells=tuple(_words(one[key]) for one in settings)) for key in settings[0])
    table = Table(title="Choices", row_heading="Key", columns=columns, blocks=(Block(title="", rows=rows),))
    return Section(title="Recipes", tables=(table,))


def _words(text: str) -> Cell:
    return Cell(text=text) if text else Cell()


# --- episodes -----------------------------------------------------------------------------------------------------


def _episodes(name: str, source: _Source, number: int, seed: int) -> Episodes:
    newest = itertools.islice(_stored(source.folder), _LOOKED_AT)
    shown = choose_episodes(newest, number, seed)
    credits: dict[str, EventCredit] = {}
    remarks: list[str] = []
    if source.is_run:
        with contextlib.suppress(ConfigError):  # advantages that nobody can tell from the log are left out
            credits, remarks = _credits(source, {one.episode.episode_id for one in shown})
    chosen = f"Chosen among the newest {_LOOKED_AT:,} that are stored; the sample has seed {seed}."
    return Episodes(
        title=f"Episodes of {name}",
        note=" ".join([chosen, *(f"{remark[:1].upper()}{remark[1:]}." for remark in remarks)]),
        shown=tuple(
            (one.reason, build_timeline(one.episode, credits=credits, max_text=_MAX_TEXT, max_tokens=0))
            for one in shown
        ),
    )


def _credits(source: _Source, wanted: set[str]) -> tuple[dict[str, EventCredit], list[str]]:
    """What the learner made of the events of some episodes, each compared with the others of its step.

    Returns:
        Credits by event id, and what is not known and why.

    Raises:
        ConfigError: the log does not tell.
    """
    credits: dict[str, EventCredit] = {}
    remarks: list[str] = []
    place = RunPlace(key=source.label, path=source.folder, kind="run")
    for file in reversed(episode_files(source.folder)):
        if not wanted:
            break
        step = list(read_episodes(file))
        here = [episode for episode in step if episode.episode_id in wanted]
        number = step_of(file.name)
        if here and number is not None:
            learned = learned_step(place, number, step)
            remarks += [learned.remark] if learned.remark else []
            for episode in here:
                credits |= credits_of(learned.experience, episode, source.recipe)
            wanted = wanted - {episode.episode_id for episode in here}
    return credits, remarks


def _stored(folder: Path) -> Iterator[Episode]:
    for file in reversed(episode_files(folder)):
        yield from read_episodes(file)
