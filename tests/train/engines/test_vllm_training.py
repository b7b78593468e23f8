"""Rollout, update, publication, rollout again: the training loop on vLLM. `make test-vllm` runs it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from srpo_envs.audit import audit_run
from srpo_envs.records import read_episodes
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here; `make test-vllm` runs this file where it is", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny-arithmetic-vllm.toml"

SMALL = (
    "env.kwargs.size=6",
    "eval.every=2",
    "eval.num_tasks=4",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=4",
    "train.checkpoint_every=2",
    "log.save_events=all",
    "log.tensorboard=false",
)


def small_recipe(folder, *overrides):
    return load_recipe(RECIPE, [f"output_dir={folder}", *SMALL, *overrides])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    return train(small_recipe(tmp_path_factory.mktemp("whole")))


def test_every_event_passes_the_audit_and_carries_the_version_that_sampled_it(whole_run):
    report = audit_run(whole_run, replay=True)
    assert report.is_ok, report.summary()
    for step in range(1, 5):
        members = [
            member
            for episode in read_episodes(whole_run / "events" / f"step-{step:06d}.jsonl")
            for event in episode.events
            for member in event.members
        ]
        assert {member.policy_id for member in members} == {"solver", "judge"}
        assert {member.policy_version for member in members} == {step - 1}


def test_vllm_samples_from_the_weights_of_every_update(whole_run):
    # What a publication misses shows up as a gap between the trainer's log-probs and the engine's.
    gaps = [line["train/engine_gap"] for line in read_metrics(whole_run) if line["step"]]
    assert len(gaps) == 4
    assert max(gaps) < 1e-5


def test_a_run_that_is_resumed_arrives_at_the_same_numbers(whole_run, tmp_path):
    train(small_recipe(tmp_path, "train.num_steps=2"))
    resumed = train(small_recipe(tmp_path), resume=True)
    assert [*map(without_timing, read_metrics(resumed))] == [*map(without_timing, read_metrics(whole_run))]


def test_two_policies_learn(tmp_path):
    # In 10 steps the reward rises from about 0.28 to 0.67; runs without publication stay where they are.
    recipe = load_recipe(RECIPE, [f"output_dir={tmp_path}", "train.num_steps=10", "eval.every=0"])
    rewards = [line["rollout/reward_mean"] for line in read_metrics(train(recipe))]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.25
