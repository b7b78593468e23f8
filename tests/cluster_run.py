"""A run on a cluster of this machine, under way, and what a test does to it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fault_world import ENV_ID, FOLDER, Gates
from ray_commands import TESTS, RayCommands
from run_accounts import Accounts, accounts_of

from srpo_train.metrics import read_metrics

RECIPE = TESTS.parent / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    f"env.id={ENV_ID}",
    "eval.every=0",
    "rollout.prompts_per_step=3",
    "rollout.group_size=4",
    "optim.micro_batch_tokens=512",
    "train.num_steps=4",
    "train.checkpoint_every=1",
    "log.save_events=all",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)
PLACES = (
    "ray.num_env_workers=2",
    *(f"ray.cpus_per_{part}=0.25" for part in ("rank", "env_worker", "engine")),
)
PER_STEP, NUM_STEPS = 12, 4
GATE = "step2/p1/g2"

_T = TypeVar("_T")


class ClusterRun:
    """A run in a process of its own, with environment workers; an episode may stand at a gate.

    Args:
        commands: Start processes.
        folder: Of the run's own files; its outputs and gates are there too.
        overrides: Of the recipe, after those that make it small.
        recipe: What is run.
        output_dir: Where the run's directory is made; the folder when omitted.
    """

    def __init__(
        self,
        commands: RayCommands,
        folder: Path,
        *overrides: str,
        recipe: Path = RECIPE,
        output_dir: Path | None = None,
    ) -> None:
        self.commands = commands
        output_dir = output_dir or folder
        self._overrides = (f"output_dir={output_dir}", *SMALL, *PLACES, *overrides)
        self.gates = Gates(folder / "gates")
        self.run_dir = output_dir / recipe.stem
        self._recipe = recipe
        self._output = folder / "output"

    @property
    def output(self) -> str:
        """What the driver has said since it was last started."""
        return self._output.read_text()

    def start(self, *options: str) -> None:
        """Start the driver."""
        keys = (word for key in self._overrides for word in ("--set", key))
        command = ("-m", "srpo_train.cli", "train", self._recipe, "--ray", *options, *keys)
        gates = {FOLDER: str(self.gates.folder)}
        self.driver: subprocess.Popen[bytes] = self.commands.start(*command, output=self._output, **gates)

    def wait_until(self, find: Callable[[], _T]) -> _T:
        """Wait for an event, and return what tells of it; a run that ends without it has failed."""
        while not (found := find()):
            assert self.driver.poll() is None, self.output
            time.sleep(0.005)
        return found

    def at_gate(self, episode_id: str = GATE) -> int:
        """Wait until a process stands there, in the middle of a collection; return it."""
        return self.wait_until(lambda: self.gates.pid_at(episode_id) or 0)

    def pid(self, seat: str) -> int:
        """Return the process of a seat, as it is now."""
        return next(int(known["pid"]) for known in self.seats if known["name"] == seat)

    @property
    def seats(self) -> list[dict[str, object]]:
        """Who is where now."""
        seats: list[dict[str, object]] = json.loads((self.run_dir / "placement.json").read_text())["seats"]
        return seats

    def end(self) -> tuple[Accounts, dict[str, float]]:
        """Wait for a good end; return the accounts of the run and what the cluster's metrics count at last."""
        assert self.driver.wait() == 0, self.output
        print(self.output)
        last = read_metrics(self.run_dir)[-1]
        accounts = accounts_of(self.run_dir, per_step=PER_STEP, num_steps=NUM_STEPS)
        return accounts, {name.removeprefix("cluster/num_"): last[name] for name in last if name.startswith("cluster/")}
