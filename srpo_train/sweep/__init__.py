"""Grids of runs: resolved and checked at once, trained by processes, resumed after any kill, summed up in one table."""

from srpo_train.sweep.cells import Cell, Run, check_runs, claim, list_runs, read_cells
from srpo_train.sweep.results import RunResult, read_results, write_results
from srpo_train.sweep.running import Outcome, run_all
from srpo_train.sweep.spec import Sweep, Variant, load_sweep

__all__ = [
    "Cell",
    "Outcome",
    "Run",
    "RunResult",
    "Sweep",
    "Variant",
    "check_runs",
    "claim",
    "list_runs",
    "load_sweep",
    "read_cells",
    "read_results",
    "run_all",
    "write_results",
]
