"""Every alarm on a run that is made to fail that way, and silence on runs that go well.

Each row trains the embedded policy for a few dozen steps with one thing done wrong, and says which alarms were raised
at which step. ``--only NAME`` runs some of the rows, ``--keep DIR`` keeps the runs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from srpo_train.alarms import Alarms, AlarmsConfig
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics

RECIPES = Path(__file__).parent.parent / "recipes"
COLLAPSES = tuple(name for name in AlarmsConfig.model_fields if name != "lr_factor")


@dataclass(frozen=True)
class Trial:
    """One row of the table."""

    name: str
    what: str
    expected: str | None
    recipe: str
    settings: tuple[str, ...]
    num_steps: int


# Eight solvers whose log-ratios are summed, nothing that bounds a step: long responses own the gradient.
UNBOUNDED = (
    "env.kwargs.num_solvers=8",
    "objective.scaling=none",
    "objective.clip_high=100.0",
    "objective.clip_low=0.99",
    "optim.max_grad_norm=100.0",
    "optim.num_minibatches=4",
    "rollout.prompts_per_step=8",
)

TRIALS = (
    Trial("team", "nothing wrong: three solvers, one policy", None, "tiny-arithmetic", (), 40),
    Trial("isolated", "nothing wrong: a policy for each role", None, "tiny-arithmetic-isolated", (), 40),
    Trial(
        "cliff",
        "a learning rate 25 times too high once it has learnt",
        "validation_cliff",
        "tiny-arithmetic",
        ("optim.lr=5e-3", "optim.warmup_steps=20", "optim.max_grad_norm=100.0", "eval.every=4", "eval.num_tasks=128"),
        24,
    ),
    Trial(
        "amplification",
        "isolated solvers that write the same (temperature 0.3), compared over all questions, summed and unclipped",
        "amplification",
        "tiny-arithmetic-isolated",
        (
            *UNBOUNDED,
            "sampling.temperature=0.3",
            "objective.group_key=['event_type']",
            "optim.lr=1e-3",
            "log.role_gradients_every=1",
        ),
        14,
    ),
    Trial(
        "capture",
        "one policy for all, summed and unclipped, at a high rate",
        "role_capture",
        "tiny-arithmetic",
        (*UNBOUNDED, "optim.lr=1e-3"),
        12,
    ),
    Trial(
        "length",
        "isolated solvers, summed and unclipped, sampled at temperature 0.4",
        "length_runaway",
        "tiny-arithmetic-isolated",
        (*UNBOUNDED, "optim.lr=1e-3", "sampling.temperature=0.4"),
        14,
    ),
    Trial(
        "entropy",
        "a price on entropy",
        "entropy_collapse",
        "tiny-arithmetic",
        ("objective.entropy_coef=-3.0", "optim.lr=5e-4"),
        12,
    ),
    Trial(
        "silence",
        "groups so fine that nothing is compared",
        "silent_batches",
        "tiny-arithmetic",
        ("objective.group_key=['group', 'event_type', 'episode']",),
        12,
    ),
)


def run(trial: Trial, folder: Path) -> list[tuple[int, str, str]]:
    """Train and return (step, alarm, role) of every alarm."""
    settings = [f"train.num_steps={trial.num_steps}", f"output_dir={folder}", f"name={trial.name}", *trial.settings]
    run_dir = train(load_recipe(RECIPES / f"{trial.recipe}.toml", settings), resume=True)
    alarms = Alarms(AlarmsConfig())
    found = [(int(line["step"]), alarm) for line in read_metrics(run_dir) for alarm in alarms.check(line)]
    return [(step, alarm.name, alarm.subject) for step, alarm in found]


def show(results: Sequence[tuple[Trial, list[tuple[int, str, str]]]]) -> None:
    table = Table("run", "what is wrong", "expected", "raised (step)")
    for trial, found in results:
        raised = ", ".join(f"{name}{f' of {role}' * bool(role)} ({step})" for step, name, role in found)
        table.add_row(trial.name, trial.what, trial.expected or "silence", raised or "-")
    Console(width=150).print(table)
    wrong = [trial.name for trial, found in results if not is_right(trial, [name for _, name, _ in found])]
    print(f"wrong: {', '.join(wrong) or 'none'}")


def is_right(trial: Trial, raised: Sequence[str]) -> bool:
    """The alarm that was expected, or no collapse at all on a healthy run."""
    return trial.expected in raised if trial.expected else not set(raised) & set(COLLAPSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--keep", type=Path, help="folder for the runs; finished ones there are not repeated")
    arguments = parser.parse_args()
    trials = [trial for trial in TRIALS if not arguments.only or trial.name in arguments.only]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        show([(trial, run(trial, folder)) for trial in trials])


if __name__ == "__main__":
    main()
