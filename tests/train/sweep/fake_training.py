"""A stand-in for ``srpo train RUN --resume``: logs steps from where it was, saves at the end.

    python fake_training.py RUN_DIR NUM_STEPS SECONDS_A_STEP [fail|child]

``fail`` ends with an error after the first step; ``child`` starts a process of its own and writes its id to ``child``.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

TIED = Path(__file__).parents[3] / "srpo_train" / "sweep" / "tied.py"


def main(run_dir: Path, num_steps: int, seconds: float, *modes: str) -> None:
    spec = importlib.util.spec_from_file_location("tied", TIED)
    assert spec is not None and spec.loader is not None
    tied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tied)  # without the package, whose imports take longer than the whole test
    tied.tie_to_parent()
    if "child" in modes:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (run_dir / "child").write_text(str(child.pid))
    metrics = run_dir / "metrics.jsonl"
    done = metrics.read_text().count("\n") if metrics.exists() else 0
    print(f"begins at step {done}", flush=True)
    for step in range(done + 1, num_steps + 1):
        time.sleep(seconds)
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "time/step_s": 1.0, "eval/accuracy": 0.5}) + "\n")
        if "fail" in modes:
            sys.exit("the search server is gone")
    (run_dir / "checkpoints" / f"step-{num_steps:06d}").mkdir(parents=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
