"""Whole runs on real clusters of this machine: the numbers of runs without Ray, and nothing left when they end."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from rank_world import run_ranks
from ray_commands import TESTS, ray_commands

from srpo_envs.audit import audit_run
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing

pytestmark = pytest.mark.timeout(900)  # some 25 s of processor time each; other work may hold them up
RECIPE = TESTS.parent / "recipes" / "tiny-arithmetic.toml"
NAME = "tiny-arithmetic"
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


def arguments(folder, *overrides):
    keys = (f"output_dir={folder}", *SMALL, *overrides)
    return ["train", str(RECIPE), "--ray", *(word for key in keys for word in ("--set", key))]


@pytest.fixture
def on_ray():
    """Run a command in a process of its own, and see that it leaves no other behind."""
    with ray_commands() as commands:
        yield commands.run


def train_on_rank(ranks, folder):
    train(load_recipe(RECIPE, [f"output_dir={folder}", *SMALL]))


def numbers(run_dir):
    lines = [without_timing(line) for line in read_metrics(run_dir)]
    own = ("cluster/", "publish/")  # what there is only where something is elsewhere
    return [{name: value for name, value in line.items() if not name.startswith(own)} for line in lines]


def cluster_numbers(run_dir):
    return {name: value for name, value in read_metrics(run_dir)[-1].items() if name.startswith("cluster/")}


def test_two_ranks_on_two_nodes_have_the_numbers_of_two_ranks_without_ray(tmp_path, on_ray):
    places = ("num_ranks=2", "strategy=SPREAD", "num_env_workers=2", "cpus_per_rank=1", "cpus_per_env_worker=1")
    overrides = [f"ray.{place}" for place in places]
    done = on_ray(TESTS / "ray_two_nodes.py", 2, *arguments(tmp_path / "ray", *overrides))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tiny-arithmetic is complete: 2 of 2 training steps" in done.stdout
    run_ranks(2, tmp_path / "meeting", train_on_rank, tmp_path / "ranks")
    assert numbers(tmp_path / "ray" / NAME) == numbers(tmp_path / "ranks" / NAME)
    assert set(cluster_numbers(tmp_path / "ray" / NAME).values()) == {0.0}
    assert audit_run(tmp_path / "ray" / NAME).is_ok
    seats = json.loads((tmp_path / "ray" / NAME / "placement.json").read_text())["seats"]
    assert sorted(seat["name"] for seat in seats) == ["environments 0", "environments 1", "rank 0", "rank 1"]


@pytest.mark.slow
def test_a_copy_in_another_process_samples_the_numbers_of_a_run_alone(tmp_path, on_ray):
    """On a cluster that the run starts for itself, as on a laptop."""
    places = ("engines_per_policy=1", "cpus_per_rank=0.5", "cpus_per_engine=0.5", "cpus_per_env_worker=0.5")
    overrides = [f"ray.{place}" for place in places]
    done = on_ray("-m", "srpo_train.cli", *arguments(tmp_path / "ray", *overrides))
    assert done.returncode == 0, done.stdout + done.stderr
    train(load_recipe(RECIPE, [f"output_dir={tmp_path / 'alone'}", *SMALL]))
    assert numbers(tmp_path / "ray" / NAME) == numbers(tmp_path / "alone" / NAME)
    assert "engine of team 0" in done.stdout


@pytest.mark.slow
def test_copies_sample_ahead_for_a_model_spread_over_two_ranks(tmp_path, on_ray):
    ahead = ("rollout.max_lag=1", "objective.correction=event", "train.num_steps=4")
    places = (
        "num_ranks=2",
        "engines_per_policy=1",
        "cpus_per_rank=0.5",
        "cpus_per_engine=0.5",
        "cpus_per_env_worker=0.5",
    )
    on_cluster = (*ahead, "distributed.sharding=fsdp", *(f"ray.{place}" for place in places))
    done = on_ray("-m", "srpo_train.cli", *arguments(tmp_path / "ray", *on_cluster))
    assert done.returncode == 0, done.stdout + done.stderr
    train(load_recipe(RECIPE, [f"output_dir={tmp_path / 'alone'}", *SMALL, *ahead]))
    found, expected = (numbers(tmp_path / name / NAME) for name in ("ray", "alone"))
    assert [line["train/policy_lag"] for line in found if line["step"]] == [0, 1, 1, 1]
    assert found[-1] == pytest.approx(expected[-1], rel=1e-3, abs=1e-5)
    assert audit_run(tmp_path / "ray" / NAME, replay=True).is_ok


def test_a_dry_run_says_what_is_missing_and_starts_nothing(tmp_path, on_ray):
    done = on_ray("-m", "srpo_train.cli", *arguments(tmp_path, "ray.num_ranks=4000"), "--dry-run")
    assert done.returncode == 1
    assert "no room: rank: no room for" in done.stdout
    assert "of 4000 places of 1 CPU" in done.stdout
    assert list(tmp_path.iterdir()) == []
