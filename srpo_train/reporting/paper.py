"""The numbers of the SRPO paper as they are printed there: quotations to set beside one's own, never reruns.

They ship as ``data/paper.toml``, which says where each is from.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import pydantic

from srpo_envs.benchmarks import BENCHMARKS
from srpo_train.reporting.tables import Score


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotedRow:
    """A line of Table 1 or 2, in percent."""

    model: str
    """Base model."""
    method: str
    """As the paper calls it."""
    num_seeds: int
    """Training seeds behind it."""
    avg_at_k: tuple[float, ...]
    """Avg@k by benchmark."""
    pass_at_k: tuple[float, ...]
    """Pass@k by benchmark."""
    macro_avg_at_k: float
    """Average over the benchmarks, as printed."""
    macro_pass_at_k: float
    """Likewise."""
    avg_at_k_std: tuple[float, ...] = ()
    """Sample standard deviation over seeds by benchmark; empty for one seed."""
    pass_at_k_std: tuple[float, ...] = ()
    """Likewise."""
    macro_avg_at_k_std: float | None = None
    """Of the average."""
    macro_pass_at_k_std: float | None = None
    """Likewise."""

    @property
    def name(self) -> str:
        """The method, and the number of seeds where there is more than one."""
        return f"{self.method} (n={self.num_seeds})" if self.num_seeds > 1 else self.method

    def scores(self) -> list[Score]:
        """Return Avg@k and Pass@k in turn for each benchmark, the average last."""
        spreads: tuple[Sequence[float | None], ...] = (
            (*(self.avg_at_k_std or [None] * len(self.avg_at_k)), self.macro_avg_at_k_std),
            (*(self.pass_at_k_std or [None] * len(self.pass_at_k)), self.macro_pass_at_k_std),
        )
        avg = map(Score, (*self.avg_at_k, self.macro_avg_at_k), spreads[0])
        passed = map(Score, (*self.pass_at_k, self.macro_pass_at_k), spreads[1])
        return [score for pair in zip(avg, passed, strict=True) for score in pair]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreTable:
    """Table 1 or 2."""

    title: str
    """Short caption."""
    where: str
    """Table and section."""
    k: int
    """Samples of each question."""
    benchmarks: tuple[str, ...]
    """Names of the benchmarks here."""
    labels: tuple[str, ...]
    """Their names in the paper's heading."""
    rows: tuple[QuotedRow, ...]
    """As printed, from top to bottom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationRow:
    """A line of Table 3, in percent."""

    variant: str
    """As the paper calls it."""
    cardinality: int
    """K."""
    normalization: str
    """Of the set log-ratio."""
    avg_at_k: float
    """Avg@k."""
    avg_at_k_std: float
    """Its sample standard deviation over seeds."""
    pass_at_k: float
    """Pass@k."""
    pass_at_k_std: float
    """Its sample standard deviation over seeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """Table 3."""

    title: str
    """Short caption."""
    where: str
    """Table and section."""
    k: int
    """Samples of each question."""
    rows: tuple[AblationRow, ...]
    """As printed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicsRow:
    """What the paper says of a training run; None where it says nothing."""

    run: str
    """As the paper calls it."""
    last_score: float | None = None
    """Smoothed training score at the end."""
    best_avg_at_k: float | None = None
    """Highest validation Avg@16, in percent."""
    grad_norm_mean: float | None = None
    """Of the gradient norm."""
    grad_norm_min: float | None = None
    """Likewise."""
    grad_norm_max: float | None = None
    """Likewise."""
    grad_norm_cv: float | None = None
    """Standard deviation over mean."""
    active_set_first: float | None = None
    """Mean active-set size at the start."""
    active_set_last: float | None = None
    """And at the end."""
    event_completeness: float | None = None
    """Share of events with every member."""
    proxy_first: float | None = None
    """Mean active-set size times mean response length at the first checkpoint, in tokens."""
    proxy_last: float | None = None
    """And at the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamics:
    """Figure 3 and what the text says of it."""

    title: str
    """Short caption."""
    where: str
    """Figure and sections."""
    rows: tuple[DynamicsRow, ...]
    """By run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Router:
    """The adaptive router of section 5.5, in percent."""

    title: str
    """Short caption."""
    where: str
    """Section."""
    k: int
    """Samples of each question."""
    active_set_last: float
    """Mean active-set size at the end."""
    avg_at_k: float
    """Avg@k."""
    pass_at_k: float
    """Pass@k."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallRow:
    """Tool calls per query of a model, over the benchmarks."""

    model: str
    """Base model."""
    low: float
    """On the benchmark with the fewest."""
    high: float
    """On the one with the most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCalls:
    """Tool calls per query, section 5.6."""

    title: str
    """Short caption."""
    where: str
    """Section."""
    rows: tuple[ToolCallRow, ...]
    """By model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The paper."""

    title: str
    """Of the paper."""
    authors: str
    """In its order."""
    remarks: tuple[str, ...]
    """What a reader of its numbers must know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """Every number quoted."""

    source: Source
    score_tables: tuple[ScoreTable, ...]
    """Tables 1 and 2."""
    ablation: Ablation
    dynamics: Dynamics
    router: Router
    tool_calls: ToolCalls


@functools.cache
def paper() -> Paper:
    """Return the paper's numbers."""
    text = resources.files("srpo_train.reporting").joinpath("data/paper.toml").read_text(encoding="utf-8")
    return pydantic.TypeAdapter(Paper).validate_python(tomllib.loads(text))


def benchmark_label(name: str) -> str:
    """Return how the paper's tables head a benchmark, or its title; the name itself for other tasks."""
    labels = {
        key: label for table in paper().score_tables for key, label in zip(table.benchmarks, table.labels, strict=True)
    }
    return labels.get(name) or (BENCHMARKS[name].title if name in BENCHMARKS else name)
