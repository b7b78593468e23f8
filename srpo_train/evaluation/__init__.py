"""Evaluation: k samples of every task, scored as Avg@k and Pass@k, with what they cost.

`evaluate` and `evaluate_agent` score one environment in memory; `run_evaluation` evaluates benchmarks into a directory,
keeps every sample and goes on where it was interrupted.
"""

from __future__ import annotations

from srpo_train.evaluation.comparison import Comparison, PairedScore, compare
from srpo_train.evaluation.harness import BATCH_SIZE, Progress, run_evaluation
from srpo_train.evaluation.plan import PLAN_FILE, EvalPlan, World, read_plan
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
    "BATCH_SIZE",
    "PLAN_FILE",
    "RESULTS_FILE",
    "BenchmarkResult",
    "Comparison",
    "EvalPlan",
    "Evaluation",
    "PairedScore",
    "Progress",
    "Results",
    "SeedResult",
    "TaskResult",
    "World",
    "compare",
    "evaluate",
    "evaluate_agent",
    "read_plan",
    "read_results",
    "require_tasks",
    "run_evaluation",
    "score_samples",
    "write_results",
]
