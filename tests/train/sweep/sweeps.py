"""Small sweeps for the tests: a recipe of three steps, and sweeps over it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from srpo_train.config import check_section
from srpo_train.sweep import Run, Sweep

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"
FAKE = Path(__file__).with_name("fake_training.py")
NUM_STEPS = 3


def make_sweep(out: Path, **fields: Any) -> Sweep:
    settings = {"train": {"num_steps": NUM_STEPS}}
    data = {"out": str(out), "recipe": str(RECIPE), "set": settings, "seeds": [0], **fields}
    return check_section(Sweep, data, source="sweep.toml")


def fake_command(*modes: str, seconds: float = 0.0, only: str = "") -> Callable[[Run], list[str]]:
    """A command that trains nothing; the modes hold for the cells whose label contains `only`."""

    def command(run: Run) -> list[str]:
        chosen = modes if only in run.cell.label else ()
        return [sys.executable, str(FAKE), str(run.run_dir), str(NUM_STEPS), str(seconds), *chosen]

    return command
