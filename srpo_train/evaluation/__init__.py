"""Evaluation: k samples of every task, scored as Avg@k and Pass@k, with what they cost."""

from __future__ import annotations

from srpo_train.evaluation.results import (
    RESULTS_FILE,
    BenchmarkResult,
    Results,
    SeedResult,
    TaskResult,
    read_results,
    write_results,
)
from srpo_train.evaluation.running import Evaluation, evaluate, evaluate_agent, require_tasks, score_samples

__all__ = [
    "RESULTS_FILE",
    "BenchmarkResult",
    "Evaluation",
    "Results",
    "SeedResult",
    "TaskResult",
    "evaluate",
    "evaluate_agent",
    "read_results",
    "require_tasks",
    "score_samples",
    "write_results",
]
