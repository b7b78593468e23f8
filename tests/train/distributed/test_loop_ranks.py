"""Whole runs on several processes: their numbers, their files, how they go on, and how they end when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rank_world import run_ranks

from srpo_envs.audit import audit_run
from srpo_envs.errors import ConfigError, RankLostError
from srpo_train.checkpoint import CheckpointStore
from srpo_train.config import load_recipe
from srpo_train.learner import Learner
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing
from srpo_train.policies import Policy

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"

SMALL = (
    "env.kwargs.size=6",
    "eval.every=2",
    "eval.at_start=false",
    "eval.num_tasks=3",
    "eval.samples_per_task=1",
    "rollout.prompts_per_step=3",
    "rollout.group_size=4",
    "optim.micro_batch_tokens=512",
    "train.num_steps=2",
    "train.checkpoint_every=2",
    "log.save_events=all",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)
SHARDED = ("distributed.sharding=fsdp",)


def recipe_in(folder, *overrides):
    return load_recipe(RECIPE, [f"output_dir={folder}", *SMALL, *overrides])


def train_runs(ranks, runs, resume=False):
    for folder, overrides in runs:
        train(recipe_in(folder, *overrides), resume=resume)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run alone, one on two processes, one spread over two processes, which is then continued by three."""
    folder = tmp_path_factory.mktemp("runs")
    names = ("alone", "replicated", "sharded", "half")
    found = {name: folder / name / "tiny-arithmetic" for name in names}
    train(recipe_in(folder / "alone"))
    on_two = [
        (folder / "replicated", ()),
        (folder / "sharded", SHARDED),
        (folder / "half", (*SHARDED, "train.num_steps=1", "train.checkpoint_every=1")),
    ]
    run_ranks(2, folder / "two", train_runs, on_two)
    run_ranks(3, folder / "three", train_runs, [(folder / "half", SHARDED)], True)
    return found


def numbers(run_dir):
    return [without_timing(line) for line in read_metrics(run_dir)]


def newest(run_dir):
    return CheckpointStore(run_dir / "checkpoints", is_read_only=True).latest().path


def weights(run_dir):
    model = Policy.load("team", newest(run_dir) / "team", device="cpu").model
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("name", ["replicated", "sharded", "half"])
def test_a_run_on_several_processes_has_the_numbers_of_one_alone(runs, name):
    found, expected = numbers(runs[name]), numbers(runs["alone"])
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    assert found[-1] == pytest.approx(expected[-1], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["replicated", "sharded", "half"])
def test_the_checkpoint_is_the_model_that_one_process_would_leave(runs, name):
    expected, found = weights(runs["alone"]), weights(runs[name])
    start = Policy.load("team", "builtin:tiny-team", device="cpu").model.parameters()
    assert (expected - torch.cat([parameter.detach().flatten() for parameter in start])).abs().max() > 1e-4
    # Adam divides by the size of the gradient: where that is near 0 a step of 2e-4 may differ by some of itself.
    assert (found - expected).abs().mean() < 2e-6
    ours, theirs = (sorted(path.name for path in (newest(runs[n]) / "team").iterdir()) for n in (name, "alone"))
    assert ours == theirs
    config = "config.json"
    assert (newest(runs[name]) / "team" / config).read_text() == (newest(runs["alone"]) / "team" / config).read_text()


def test_files_are_written_once_and_events_pass_the_audit(runs):
    for name in ("replicated", "sharded"):
        assert audit_run(runs[name]).is_ok
        assert sorted(path.name for path in (runs[name] / "events").iterdir()) == [
            "step-000001.jsonl",
            "step-000002.jsonl",
        ]
        assert {path.name for path in runs[name].iterdir()} == {path.name for path in runs["alone"].iterdir()}


def test_the_optimiser_of_a_sharded_run_lies_in_parts(runs):
    assert len(list((newest(runs["sharded"]) / "_shards" / "team").glob("*.distcp"))) == 2
    assert len(list((newest(runs["half"]) / "_shards" / "team").glob("*.distcp"))) == 3
    assert not (newest(runs["replicated"]) / "_shards").exists()


def test_a_recipe_that_shards_needs_torchrun(tmp_path):
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node"):
        train(recipe_in(tmp_path, *SHARDED))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("policies.team.adapter.rank=4",), "a base that adapters stand on is not sharded"),
        (("log.role_gradients_every=10",), "measures whole gradients"),
        (("distributed.sharding=none", "distributed.cpu_offload=true"), "are read with sharding"),
    ],
)
def test_what_cannot_be_sharded_is_refused(tmp_path, overrides, complaint):
    with pytest.raises(ConfigError, match=complaint):
        recipe_in(tmp_path, *SHARDED, *overrides)


def test_a_critic_cannot_be_sharded(tmp_path):
    with pytest.raises(ConfigError, match="needs a critic, which is not sharded"):
        recipe_in(tmp_path, *SHARDED, "objective.preset=ppo").build_objective()


# --- a rank that dies or hangs, and the command line --------------------------------------------------------------

HARMS = {"dies": lambda: os._exit(1), "hangs": lambda: os.kill(os.getpid(), signal.SIGSTOP)}


def train_until_one_fails(rank, folder, harm):
    """Harm rank 1 in the second update, and write down what rank 0 says of it."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=20 if harm == "hangs" else 120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=limit)
    if rank == 1:
        update, calls = Learner.update, []

        def harmed(*given, **options):
            calls.append(1)
            if len(calls) == 2:
                HARMS[harm]()
            return update(*given, **options)

        Learner.update = harmed
    try:
        train(recipe_in(folder, "train.checkpoint_every=1"))
    except RankLostError as error:
        (Path(folder) / "error").write_text(str(error))


@pytest.mark.parametrize("harm", ["dies", pytest.param("hangs", marks=pytest.mark.slow)])
def test_a_rank_that_is_lost_ends_the_others_with_a_clear_error_and_they_go_on_to_the_same_numbers(
    runs, tmp_path, harm
):
    processes = mp.start_processes(
        train_until_one_fails, (str(tmp_path), harm), nprocs=2, start_method="forkserver", join=False
    )
    processes.processes[0].join(200)
    processes.processes[1].kill()
    message = (tmp_path / "error").read_text()
    assert "rank 0 of 2" in message
    assert "another rank has died, or took longer than distributed.timeout_s" in message
    assert "--resume" in message
    run_dir = tmp_path / "tiny-arithmetic"
    assert [line["step"] for line in read_metrics(run_dir)] == [1]
    run_ranks(2, tmp_path / "again", train_runs, [(tmp_path, ())], True)
    assert numbers(run_dir) == numbers(runs["replicated"])


def test_torchrun_trains_from_the_command_line(tmp_path):
    overrides = (*SMALL, "train.num_steps=1", "eval.every=0", f"output_dir={tmp_path}", *SHARDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "srpo_train.cli", "train", str(RECIPE)]
    done = subprocess.run(
        [*command, *(word for key in overrides for word in ("--set", key))],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tiny-arithmetic is complete: 1 of 1 training steps") == 1
    assert [line["step"] for line in read_metrics(tmp_path / "tiny-arithmetic")] == [1]
