"""An environment that hangs in the middle of a run: its deadline bounds it, and the metrics say so."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from fault_world import ENV_ID, FOLDER, Gates
from run_accounts import accounts_of

from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    f"env.id={ENV_ID}",
    "eval.every=0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "rollout.step_timeout_s=4",
    "rollout.straggler_grace_s=0.5",
    "train.num_steps=2",
    "log.save_events=all",
    "log.tensorboard=false",
    "log.role_gradients_every=0",
)


@pytest.mark.parametrize("mode", ["rounds", pytest.param("asynchronous", marks=pytest.mark.slow)])
def test_an_episode_whose_environment_hangs_is_counted_as_expired_and_the_run_goes_on(tmp_path, monkeypatch, mode):
    monkeypatch.setenv(FOLDER, str(tmp_path / "gates"))
    gates = Gates(tmp_path / "gates")
    gates.close("step1/p1/g2")
    try:
        run_dir = train(load_recipe(RECIPE, [f"output_dir={tmp_path}", f"rollout.mode={mode}", *SMALL]))
    finally:
        gates.open("step1/p1/g2")  # the thread that was left behind ends
    assert gates.pid_at("step1/p1/g2")
    assert [line["rollout/num_expired_episodes"] for line in read_metrics(run_dir)] == [1, 0]
    accounts = accounts_of(run_dir, per_step=8, num_steps=2)
    assert (accounts.trained, accounts.failed, accounts.expired) == (15, 1, 1)
