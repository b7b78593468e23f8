"""Grading processes that are killed at work: every item is graded, and no answer is wrong for it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from fault_world import CODE_ENV_ID, ENV_ID, FOLDER, Gates
from run_accounts import accounts_of

from srpo_envs.errors import SandboxError
from srpo_envs.sandbox.shared import open_sandbox
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing

RECIPES = Path(__file__).parents[3] / "recipes"
SMALL = (
    "eval.every=0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "rollout.num_workers=1",
    "train.num_steps=2",
    "log.save_events=all",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)
OWN = ("rollout/num_lost_graders", "rollout/num_step_retries")


def run(folder, recipe, env_id):
    return train(load_recipe(RECIPES / recipe, [f"output_dir={folder}", f"env.id={env_id}", *SMALL]))


def numbers(run_dir):
    return [{k: v for k, v in without_timing(line).items() if k not in OWN} for line in read_metrics(run_dir)]


@pytest.fixture
def gates(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "gates"))
    return Gates(tmp_path / "gates")


def test_a_grading_worker_that_is_killed_at_work_costs_no_episode_and_changes_no_grade(tmp_path, gates):
    whole = run(tmp_path / "whole", "tiny-arithmetic.toml", ENV_ID)
    gates.lose_grader()
    run_dir = run(tmp_path / "faulty", "tiny-arithmetic.toml", ENV_ID)
    assert gates.is_grader_lost
    assert [read_metrics(each)[-1]["rollout/num_lost_graders"] for each in (whole, run_dir)] == [0, 1]
    assert numbers(run_dir) == numbers(whole)
    assert any(line["rollout/accuracy"] for line in read_metrics(run_dir))
    assert accounts_of(run_dir, per_step=8, num_steps=2).trained == 16


def test_a_sandbox_that_is_killed_at_work_costs_no_episode_and_changes_no_grade(tmp_path, gates):
    try:
        open_sandbox("namespaces")
    except SandboxError as error:
        pytest.skip(str(error))
    whole = run(tmp_path / "whole", "tiny-code-single-agent.toml", CODE_ENV_ID)
    gates.lose_grader()
    run_dir = run(tmp_path / "faulty", "tiny-code-single-agent.toml", CODE_ENV_ID)
    assert gates.is_grader_lost
    assert sum(line["rollout/num_step_retries"] for line in read_metrics(run_dir)) == 1
    assert numbers(run_dir) == numbers(whole)
    assert accounts_of(run_dir, per_step=8, num_steps=2).trained == 16
