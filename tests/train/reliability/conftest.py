"""A small run of the embedded policy in which nothing fails, and its recipe, for runs in which something does."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    "eval.every=0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=3",
    "train.checkpoint_every=1",
    "log.save_events=all",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)


@pytest.fixture(scope="session")
def small_recipe():
    """Return what makes the recipe of a run of three steps of eight episodes, in a folder."""
    config = pytest.importorskip("srpo_train.config")
    return lambda folder, *overrides: config.load_recipe(RECIPE, [f"output_dir={folder}", *SMALL, *overrides])


@pytest.fixture(scope="session")
def whole_run(small_recipe, tmp_path_factory) -> Path:
    """The directory of a run that nothing happened to; tests must leave it as it is."""
    from srpo_train.loop import train

    return train(small_recipe(tmp_path_factory.mktemp("whole")))


@pytest.fixture
def start(tmp_path):
    """Start a run on a cluster, with an episode's gate closed; whatever is left of it ends with the test."""
    pytest.importorskip("ray")
    from cluster_run import GATE, ClusterRun
    from ray_commands import ray_commands

    with ray_commands() as commands:
        runs = []

        def make(*overrides, closed=(GATE,), **options):
            runs.append(ClusterRun(commands, tmp_path, *overrides, **options))
            for episode_id in closed:
                runs[-1].gates.close(episode_id)
            runs[-1].start()
            return runs[-1]

        yield make
        for run in runs:
            if run.driver.poll() is None:
                run.driver.terminate()
                run.driver.wait()


class Disk:
    """A small file system of its own."""

    def __init__(self, path):
        self.path = path
        self._ballast = path / "ballast"

    def fill(self):
        """Leave no room, not even for what fits into blocks already begun."""
        with self._ballast.open("wb", buffering=0) as file:
            piece = 1 << 20
            while piece:
                try:
                    file.write(b"0" * piece)
                except OSError:
                    piece //= 2

    def free(self):
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path):
    """A disk that a test may fill; skips where none can be made."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", uuid.uuid4().hex, path], capture_output=True)
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.decode().strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", path], check=True)
