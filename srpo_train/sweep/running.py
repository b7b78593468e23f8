"""Training the runs of a sweep: so many at once, every one looked after, whatever becomes of the others."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from srpo_train.sweep.cells import Run, standing
from srpo_train.sweep.processes import RunProcess, describe_status, train_command

State = Literal["waiting", "training", "finished", "failed"]

Watch = Callable[[Mapping[str, State]], None]
"""Is told the states of all runs, by name, at every look."""

_LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run."""

    run: Run
    """Which."""
    is_finished: bool
    """Whether it is trained to its end."""
    reason: str = ""
    """How it failed."""
    tail: str = ""
    """The last lines of its log, when it failed."""


def run_all(
    runs: Sequence[Run],
    *,
    processes: int,
    command: Callable[[Run], Sequence[str]] = train_command,
    watch: Watch = lambda states: None,
) -> list[Outcome]:
    """Train all runs that are not finished, in their order, and return what became of each.

    A run that fails does not stop the others. Leaving by an exception, Ctrl-C among them, ends every process; their
    runs go on with the next call.

    Args:
        runs: Runs whose directories hold their recipe, see `claim`.
        processes: Runs that train at once.
        command: The program that trains a run.
        watch: Is told how the runs stand.
    """
    outcomes = {run.name: Outcome(run=run, is_finished=True) for run in runs if standing(run.recipe).is_finished}
    waiting = deque(run for run in runs if run.name not in outcomes)
    active: list[RunProcess] = []
    num_threads = max(1, _num_cores() // processes)
    try:
        while waiting or active:
            while waiting and len(active) < processes:
                run = waiting.popleft()
                active.append(RunProcess(run, command(run), num_threads))
            watch(_states(runs, active, outcomes))
            time.sleep(_LOOK_S)
            for process in [process for process in active if process.poll() is not None]:
                active.remove(process)
                outcomes[process.run.name] = _outcome(process)
    finally:
        for process in active:
            process.kill()
    watch(_states(runs, active, outcomes))
    return [outcomes[run.name] for run in runs]


def _num_cores() -> int:
    """Cores that this process may use, where the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _outcome(process: RunProcess) -> Outcome:
    status = process.poll() or 0
    if status:
        return Outcome(run=process.run, is_finished=False, reason=describe_status(status), tail=process.tail())
    if not standing(process.run.recipe).is_finished:
        reason = "it ended before the run did"
        return Outcome(run=process.run, is_finished=False, reason=reason, tail=process.tail())
    return Outcome(run=process.run, is_finished=True)


def _states(runs: Sequence[Run], active: Sequence[RunProcess], outcomes: Mapping[str, Outcome]) -> dict[str, State]:
    training = {process.run.name for process in active}
    states: dict[str, State] = {}
    for run in runs:
        outcome = outcomes.get(run.name)
        if outcome is None:
            states[run.name] = "training" if run.name in training else "waiting"
        else:
            states[run.name] = "finished" if outcome.is_finished else "failed"
    return states
