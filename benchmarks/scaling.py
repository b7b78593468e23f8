"""Training steps on 1, 2 and 4 processes of this machine: replicated policies, and policies spread with FSDP2.

    python benchmarks/scaling.py               # about five minutes on two cores; --processes 1,2 for less

Each process has one thread, so that one of them uses one core. Every run trains the tiny policy on the same recipe,
seed and tasks, for a few steps, of which the first is not counted; the numbers it reports must be those of one process.
Times are medians over steps by the clock. On a machine with fewer cores than processes the processes take turns and
nothing can be gained by more of them: the table then shows what the exchange between them costs.

The gloo backend between processes of one machine says nothing of NCCL between GPUs. What is measured is that the work
is divided, how evenly, and how much is exchanged.
"""

from __future__ import annotations

import argparse
import os
import statistics
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
COLUMNS = ("policies", "processes", "step s", "generate s", "update s", "step, ratio", "update, ratio", "same numbers")
TOLERANCE = 1e-3


def run(num_processes: int, sharding: str, num_steps: int, folder: Path) -> list[dict[str, float]]:
    """Train in processes of torchrun and return the metrics of every step."""
    overrides = (*SETTINGS, f"train.num_steps={num_steps}", f"distributed.sharding={sharding}")
    name = f"{sharding}-{num_processes}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    command += ["-m", "srpo_train.cli", "train", str(RECIPE), "--name", name, "--set", f"output_dir={folder}"]
    command += [word for override in overrides for word in ("--set", override)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-4000:]}")
    return read_metrics(folder / name)


def median(lines: list[dict[str, float]], name: str) -> float:
    return statistics.median(line[name] for line in lines[1:])


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
    parser.add_argument("--steps", type=int, default=5, help="training steps of each run")
    options = parser.parse_args()
    table = Table(*COLUMNS, title=f"tiny-arithmetic, {options.steps - 1} steps, {os.cpu_count()} cores, gloo")
    with tempfile.TemporaryDirectory() as folder:
        first: list[dict[str, float]] = []
        for sharding, label in (("none", "replicated"), ("fsdp", "FSDP2")):
            for number in map(int, options.processes.split(",")):
                lines = run(number, sharding, options.steps, Path(folder))
                first = first or lines
                names = ("time/step_s", "time/generate_s", "time/update_s")
                step, generate, update = (median(lines, name) for name in names)
                ratios = (median(first, "time/step_s") / step, median(first, "time/update_s") / update)
                cells = [f"{value:.2f}" for value in (step, generate, update, *ratios)]
                table.add_row(label, str(number), *cells, differs(lines, first))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
