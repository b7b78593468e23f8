"""Parts of a run on a cluster that are killed or stopped at a known moment: the run goes on, and everything is counted.

Each test starts a real run with environment workers and copies of the policy in processes of their own, waits until one
episode stands before its first step (a gate of `fault_world`), and does its harm there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from fault_world import ENV_ID, FOLDER, Gates
from ray_commands import TESTS, ray_commands
from run_accounts import accounts_of

from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RECIPE = TESTS.parent / "recipes" / "tiny-arithmetic.toml"
NAME = "tiny-arithmetic"
SMALL = (
    f"env.id={ENV_ID}",
    "eval.every=0",
    "rollout.prompts_per_step=3",
    "rollout.group_size=4",
    "optim.micro_batch_tokens=512",
    "train.num_steps=4",
    "train.checkpoint_every=1",
    "log.save_events=all",
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)
PLACES = (
    "ray.num_env_workers=2",
    *(f"ray.cpus_per_{part}=0.25" for part in ("rank", "env_worker", "engine")),
)
COPIES = ("ray.engines_per_policy=2",)
PER_STEP, NUM_STEPS = 12, 4
GATE = "step2/p1/g2"


class Run:
    """A run under way, and what a test does to it."""

    def __init__(self, commands, folder: Path, *overrides: str) -> None:
        self._commands = commands
        self._folder = folder
        self._overrides = (f"output_dir={folder}", *SMALL, *PLACES, *overrides)
        self.gates = Gates(folder / "gates")
        self.run_dir = folder / NAME
        self.output = folder / "output"

    def start(self, *options: str) -> None:
        keys = (word for key in self._overrides for word in ("--set", key))
        command = ("-m", "srpo_train.cli", "train", RECIPE, "--ray", *options, *keys)
        gates = {FOLDER: str(self.gates.folder)}
        self.driver = self._commands.start(*command, output=self.output, **gates)

    def wait_until(self, is_so) -> None:
        """Wait for an event; a run that ends without it has failed."""
        while not (found := is_so()):
            assert self.driver.poll() is None, self.output.read_text()
            time.sleep(0.005)
        return found

    def at_gate(self, episode_id: str = GATE) -> int:
        """Wait until a process stands there, in the middle of a collection; return it."""
        return self.wait_until(lambda: self.gates.pid_at(episode_id))

    def pid(self, seat: str) -> int:
        seats = json.loads((self.run_dir / "placement.json").read_text())["seats"]
        return next(known["pid"] for known in seats if known["name"] == seat)

    def end(self):
        """Wait for a good end; return the accounts of the run and its last metrics."""
        assert self.driver.wait() == 0, self.output.read_text()
        accounts = accounts_of(self.run_dir, per_step=PER_STEP, num_steps=NUM_STEPS)
        last = read_metrics(self.run_dir)[-1]
        print(self.output.read_text())
        return accounts, {name.removeprefix("cluster/num_"): last[name] for name in last if name.startswith("cluster/")}


@pytest.fixture
def start(tmp_path):
    with ray_commands() as commands:
        runs = []

        def make(*overrides, closed=(GATE,)):
            runs.append(Run(commands, tmp_path, *overrides))
            for episode_id in closed:
                runs[-1].gates.close(episode_id)
            runs[-1].start()
            return runs[-1]

        yield make
        for run in runs:
            if run.driver.poll() is None:
                run.driver.terminate()
                run.driver.wait()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The numbers of the same run in one process, in which nothing fails."""
    return numbers(train(load_recipe(RECIPE, [f"output_dir={tmp_path_factory.mktemp('alone')}", *SMALL])))


def numbers(run_dir):
    lines = [without_timing(line) for line in read_metrics(run_dir)]
    own = ("cluster/", "rollout/num_lost_graders")
    return [{name: value for name, value in line.items() if not name.startswith(own)} for line in lines]


def cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_an_environment_worker_that_is_killed_changes_no_number(start, alone):
    run = start()
    os.kill(run.at_gate(), signal.SIGKILL)
    run.gates.open(GATE)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["env_worker_restarts"] == 1
    assert cluster["rebuilt_episodes"] >= 1
    assert numbers(run.run_dir) == alone


def test_a_grading_worker_that_is_killed_in_an_environment_worker_changes_no_number(start, alone):
    run = start()
    run.at_gate()
    run.gates.lose_grader()
    run.gates.open(GATE)
    accounts, cluster = run.end()
    assert run.gates.is_grader_lost
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["lost_graders"] == 1
    assert numbers(run.run_dir) == alone


def test_a_copy_of_the_policy_that_is_killed_while_it_samples_loses_no_episode(start):
    run = start(*COPIES)
    run.at_gate()
    pid = run.pid("engine of team 0")
    before = cpu_ticks(pid)
    run.gates.open(GATE)
    run.wait_until(lambda: cpu_ticks(pid) >= before + 3)  # it was idle, and is at work
    os.kill(pid, signal.SIGKILL)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["engine_restarts"] == 1
    assert cluster["rank_restarts"] == 0


def test_a_rank_that_is_killed_while_it_collects_and_while_it_saves_arrives_at_the_same_numbers(start, alone):
    run = start(closed=(GATE, "step3/p0/g0"))
    run.at_gate()
    os.kill(run.pid("rank 0"), signal.SIGKILL)
    run.gates.open(GATE)
    run.at_gate("step3/p0/g0")
    rank = run.pid("rank 0")
    run.gates.open("step3/p0/g0")
    run.wait_until(lambda: list((run.run_dir / "checkpoints").glob("step-000003*")))
    os.kill(rank, signal.SIGKILL)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["rank_restarts"] == 2
    assert numbers(run.run_dir) == alone


def test_a_driver_that_is_killed_takes_all_with_it_and_the_resumed_run_arrives_at_the_same_numbers(start, alone):
    run = start()
    run.at_gate()
    run.driver.kill()
    run.driver.wait()
    while run._commands.left:
        time.sleep(0.05)
    assert [line["step"] for line in read_metrics(run.run_dir)] == [1]
    run.gates.open(GATE)
    run.start("--resume")
    accounts, _ = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert numbers(run.run_dir) == alone


def test_an_environment_worker_that_is_stopped_costs_its_episodes_their_deadline_and_the_run_goes_on(start):
    run = start("rollout.step_timeout_s=8", "rollout.straggler_grace_s=2")
    stopped = run.at_gate()
    os.kill(stopped, signal.SIGSTOP)
    try:
        run.gates.open(GATE)
        accounts, cluster = run.end()
    finally:
        with contextlib.suppress(ProcessLookupError):  # ended with the run
            os.kill(stopped, signal.SIGCONT)
    lines = read_metrics(run.run_dir)
    assert lines[1]["rollout/num_expired_episodes"] >= 1
    assert accounts.expired == accounts.failed == PER_STEP * NUM_STEPS - accounts.trained
    assert accounts.trained >= PER_STEP * NUM_STEPS // 2
    assert cluster["env_worker_restarts"] == 0


def test_a_copy_that_is_stopped_is_killed_at_its_deadline_and_loses_no_episode(start):
    run = start(*COPIES, "ray.copy_timeout_s=10")
    run.at_gate()
    os.kill(run.pid("engine of team 1"), signal.SIGSTOP)
    run.gates.open(GATE)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["engine_restarts"] == 1
    assert "engine of team 1 did not answer for 10 s and is killed" in run.output.read_text()
