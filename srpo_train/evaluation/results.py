"""What an evaluation found, as one file: `results.json` of an evaluation directory.

The file holds what was counted, by benchmark and seed. Means over seeds, macro averages, intervals and tests are
computed from it by `srpo_train.evaluation.scores` and stored nowhere::

    results = read_results("runs/demo/evals/math")
    results.benchmarks["math500"].seeds[0].avg_at_k      # 0.73
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pydantic

from srpo_envs.errors import RecordError, SchemaVersionError
from srpo_envs.storing import replace_whole

RESULTS_FILE = "results.json"
"""Name of the file in an evaluation directory."""

RESULTS_SCHEMA = 1
"""Version this module writes, and the newest it reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """What became of one task under one seed."""

    task_id: str
    """The task's id."""
    num_correct: int
    """c, the correct samples."""
    num_samples: int
    """n, the samples that count: finished ones, and those in which the team brought itself where none can answer."""
    num_tokens: int
    """Sampled tokens of the finished samples (C_tok of eq. 8, summed)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedResult:
    """One benchmark under one seed."""

    avg_at_k: float | None
    """Mean over tasks of the share of correct samples; None where no sample counts."""
    pass_at_k: float | None
    """Share of tasks with at least one correct sample; None where no sample counts."""
    num_samples: int
    """Samples that count, over all tasks."""
    num_failed: int
    """Samples lost to broken surroundings; they are neither right nor wrong, and in no other figure here."""
    costs: Mapping[str, float]
    """What the finished samples cost, by name: see `srpo_train.costs.mean_costs`."""
    per_task: tuple[TaskResult, ...]
    """One entry for each task of which a sample counts, in the order of the benchmark."""
    num_unanswered: int = 0
    """Samples that are wrong because the team could not answer any more; they count, and have no episode."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why samples have no episode, lost or unanswered, and how many for each reason; the most frequent ones first."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means over the finished samples of what the workflow measured: validity and length by role, and the like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkResult:
    """One benchmark under every seed."""

    env_id: str
    """The environment whose workflow answered."""
    num_tasks: int
    """Tasks that were evaluated: all of them, or as many as were asked for."""
    set_size: int
    """Tasks that the loaded set holds."""
    expected_tasks: int | None
    """Tasks that the published set holds; None where that is not known."""
    digest: str
    """Digest of the questions and golden answers that were evaluated; equal digests mean the same tasks."""
    seeds: Mapping[int, SeedResult]
    """By seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Everything one evaluation found."""

    method: str
    """Label of the row this makes in a table, such as ``SRPO``."""
    model: str
    """What answered: a base model, an endpoint, an agent."""
    source: str
    """What was evaluated, as it was named."""
    samples: int
    """k: samples of each task under each seed."""
    budget: Mapping[str, float] | None = None
    """Limits every episode ran under; None without any."""
    benchmarks: Mapping[str, BenchmarkResult] = field(default_factory=dict)
    """By name, in the order they were asked for."""
    schema: int = RESULTS_SCHEMA
    """Version of the file's format."""


_RESULTS = pydantic.TypeAdapter(Results)


def read_results(path: str | os.PathLike[str]) -> Results:
    """Return the results of an evaluation.

    Args:
        path: An evaluation directory, or its file.

    Raises:
        RecordError: there is no such file, or it is damaged; says where.
        SchemaVersionError: a newer version wrote it.
    """
    file = Path(path) / RESULTS_FILE if Path(path).is_dir() else Path(path)
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise RecordError(f"{file}: no results to read ({error}); is it the directory of an evaluation?") from error
    except ValueError as error:
        raise RecordError(f"{file}: not JSON ({error}); the file is damaged") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > RESULTS_SCHEMA:
        raise SchemaVersionError(
            f"{file}: written with schema {schema}, this version reads up to {RESULTS_SCHEMA}; upgrade srpo"
        )
    try:
        return _RESULTS.validate_python(content)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(
            f"{file}: not the results of an evaluation: {where + ': ' if where else ''}{first['msg']}"
        ) from error


def write_results(directory: str | os.PathLike[str], results: Results) -> None:
    """Write `results.json` into an evaluation directory; a reader sees the old file or the new one, never a part.

    Raises:
        StorageFullError: there is no room for it.
    """
    replace_whole(Path(directory) / RESULTS_FILE, [_RESULTS.dump_json(results, indent=1), b"\n"])
