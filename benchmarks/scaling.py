"""Training steps on 1, 2 and 4 processes of this machine: replicated policies, and policies spread with FSDP2.

    python benchmarks/scaling.py               # some ten minutes on two cores; --processes 1,2 for less

Each process has one thread. Every run trains the tiny policy on the same recipe, seed and tasks, and the numbers it
reports must be those of one process.

What is measured is processor time, which other work on the machine disturbs least: that of all processes of a run of
several steps, less that of a run of one step, for a step. *Efficiency* is what one process alone needs over what all of
them need together; less than 1 is what dividing the work costs: exchange, smaller batches, and what every rank does for
itself. *Speed-up* is efficiency times processes: what is gained where each process has a core of its own and ranks are
equally loaded. The gloo backend between processes of one machine says nothing of NCCL between GPUs.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from srpo_train.metrics import read_metrics

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"
SETTINGS = ("eval.every=0", "train.checkpoint_every=1000", "train.num_threads=1", "log.tensorboard=false")
SETTINGS += ("log.save_events=none", "log.role_gradients_every=0", "optim.micro_batch_tokens=4096")
COLUMNS = ("policies", "processes", "CPU s / step", "efficiency", "speed-up", "same numbers")
TOLERANCE = 1e-3


def run(num_processes: int, sharding: str, num_steps: int, folder: Path) -> tuple[float, list[dict[str, float]]]:
    """Train in processes of torchrun; return the processor seconds of all of them, and the metrics of every step."""
    overrides = (*SETTINGS, f"train.num_steps={num_steps}", f"distributed.sharding={sharding}")
    name = f"{sharding}-{num_processes}-{num_steps}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    command += ["-m", "srpo_train.cli", "train", str(RECIPE), "--name", name, "--set", f"output_dir={folder}"]
    command += [word for override in overrides for word in ("--set", override)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = _children_s()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-4000:]}")
    return _children_s() - before, read_metrics(folder / name)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def differs(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    """Say whether two runs report the same rewards and gradients."""
    names = ("rollout/reward_mean", "train/grad_norm", "train/ratio_max")
    gap = max(
        abs(a[name] - b[name]) / max(abs(b[name]), 1e-6) for a, b in zip(ours, theirs, strict=True) for name in names
    )
    return "yes" if gap < TOLERANCE else f"no: {gap:.1%} apart"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="1,2,4", help="numbers of processes")
    parser.add_argument("--steps", type=int, default=5, help="training steps that are measured")
    options = parser.parse_args()
    table = Table(*COLUMNS, title=f"tiny-arithmetic, {options.steps} steps, one thread a process, gloo")
    with tempfile.TemporaryDirectory() as folder:
        alone: tuple[float, list[dict[str, float]]] | None = None
        for sharding, label in (("none", "replicated"), ("fsdp", "FSDP2")):
            for number in map(int, options.processes.split(",")):
                begun_s, _ = run(number, sharding, 1, Path(folder))
                whole_s, lines = run(number, sharding, 1 + options.steps, Path(folder))
                step_s = (whole_s - begun_s) / options.steps
                alone = alone or (step_s, lines)
                efficiency = alone[0] / step_s
                cells = [f"{value:.2f}" for value in (step_s, efficiency, efficiency * number)]
                table.add_row(label, str(number), *cells, differs(lines, alone[1]))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
