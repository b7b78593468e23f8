"""Training with rollouts that go on during updates, end to end on the embedded policy, killed and resumed."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from srpo_envs.audit import audit_run
from srpo_envs.errors import ConfigError
from srpo_envs.records import read_episodes
from srpo_train.config import load_recipe
from srpo_train.distributed.ranks import Ranks
from srpo_train.distributed.setup import require_supported
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing
from srpo_train.places import Here

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"
SMALL = (
    "env.kwargs.size=6",
    "eval.every=3",
    "eval.num_tasks=2",
    "eval.samples_per_task=1",
    "eval.temperature=0.0",
    "rollout.prompts_per_step=3",
    "rollout.group_size=4",
    "train.num_steps=6",
    "train.checkpoint_every=2",
    "log.save_events=all",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
    "log.role_gradients_every=0",
    "objective.correction=event",
)
ROUNDS = ("rollout.max_lag=1",)
STREAM = ("rollout.max_lag=2", 'rollout.mode="asynchronous"')


def recipe(folder, *overrides, path=RECIPE):
    return load_recipe(path, [f"output_dir={folder}", *SMALL, *overrides])


def stored(run_dir, step):
    return list(read_episodes(run_dir / "events" / f"step-{step:06d}.jsonl"))


def members(episodes):
    return [member for episode in episodes for event in episode.events for member in event.members]


def numbers(run_dir):
    return [without_timing(line) for line in read_metrics(run_dir)]


@pytest.fixture(scope="module")
def in_rounds(tmp_path_factory) -> Path:
    return train(recipe(tmp_path_factory.mktemp("rounds"), *ROUNDS))


def test_in_rounds_every_sample_is_exactly_so_old(in_rounds):
    versions = [{member.policy_version for member in members(stored(in_rounds, step))} for step in range(1, 7)]
    assert versions == [{0}, {0}, {1}, {2}, {3}, {4}]
    lines = [line for line in read_metrics(in_rounds) if line["step"]]
    assert [line["train/policy_lag"] for line in lines] == [0, 1, 1, 1, 1, 1]
    assert [line["train/policy_version"] for line in lines] == [1, 2, 3, 4, 5, 6]
    # The first two steps meet the weights that sampled them or have not moved yet; later ones differ and are weighed.
    assert lines[0]["train/engine_gap"] < 1e-4 < min(line["train/engine_gap"] for line in lines[1:3])
    assert all(line["train/first_clip_fraction"] == 0 for line in lines)
    assert any(line["perf/overlap_share"] > 0 for line in lines)
    assert all(0 <= line["perf/overlap_share"] <= line["time/update_s"] / line["time/step_s"] for line in lines)


def test_its_events_pass_the_audit_and_replay(in_rounds):
    report = audit_run(in_rounds, replay=True)
    assert report.is_ok, report.summary()


_DRIVER = """
import sys
from srpo_train.config import load_recipe
from srpo_train.loop import train
train(load_recipe(sys.argv[1], sys.argv[2:]), resume=True)
"""


def run_and_kill(folder, overrides, step, limit_s=120.0):
    """Start the run as a process and kill it as soon as it has taken so many steps."""
    run_dir = folder / "tiny-arithmetic"
    arguments = [sys.executable, "-c", _DRIVER, str(RECIPE), f"output_dir={folder}", *SMALL, *overrides]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < deadline:
        if any(line["step"] >= step for line in read_metrics(run_dir)):
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, f"the run ended before it could be killed:\n{output}"
    return run_dir


def untimed(episodes):
    def strip(event):
        return dataclasses.replace(event, members=tuple(dataclasses.replace(m, timings={}) for m in event.members))

    return [dataclasses.replace(episode, events=tuple(map(strip, episode.events))) for episode in episodes]


def test_a_run_in_rounds_that_is_killed_arrives_at_the_same_numbers(in_rounds, tmp_path):
    run_dir = run_and_kill(tmp_path, ROUNDS, step=3)
    train(recipe(tmp_path, *ROUNDS), resume=True)
    assert numbers(run_dir) == numbers(in_rounds)
    name = Path("checkpoints") / "step-000006" / "team" / "model.safetensors"
    assert (run_dir / name).read_bytes() == (in_rounds / name).read_bytes()
    for step in range(1, 7):
        assert untimed(stored(run_dir, step)) == untimed(stored(in_rounds, step))


def test_a_run_of_streamed_groups_that_is_killed_trains_nothing_twice_and_loses_nothing_uncounted(tmp_path):
    run_dir = run_and_kill(tmp_path, STREAM, step=3)
    train(recipe(tmp_path, *STREAM), resume=True)
    report = audit_run(run_dir, replay=True)
    assert report.is_ok, report.summary()  # among others: no event id twice in the run
    lines = [line for line in read_metrics(run_dir) if line["step"]]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    groups: Counter[str] = Counter()
    for step, line in enumerate(lines, start=1):
        versions = [member.policy_version for member in members(stored(run_dir, step))]
        assert step - 1 - min(versions) == line["train/policy_lag_max"] <= 2
        groups.update(episode.group_id for episode in stored(run_dir, step))
    assert set(groups.values()) == {4}
    # Nothing failed, so the prompts are those of a run in turn, each once: those under way at the kill came again.
    assert set(groups) == {f"step{step}/p{prompt}" for step in range(1, 7) for prompt in range(3)}
    assert all(line["rollout/num_failed_episodes"] == 0 for line in lines)
    assert all(line["rollout/num_recollected_episodes"] == 0 for line in lines[3:])


def test_mini_batches_are_trained_on_as_they_come(tmp_path):
    run_dir = train(recipe(tmp_path, *STREAM, "rollout.early_start=true", "optim.num_minibatches=3", "eval.every=0"))
    assert audit_run(run_dir).is_ok
    for line in read_metrics(run_dir):
        assert line["train/num_updates"] == 3
        assert line["rollout/num_episodes"] == 12
        assert line["train/num_events"] == line["rollout/num_events"]
        assert line["train/clip_fraction"] == 0  # each mini-batch has old log-probabilities of its own


def test_a_copy_of_adapters_samples_with_the_published_ones(tmp_path):
    pytest.importorskip("peft")
    path = ROOT / "recipes" / "tiny-arithmetic-lora.toml"
    settings = ("eval.every=0", "train.num_steps=4", "optim.lr=0.01")
    run_dir = train(recipe(tmp_path, *ROUNDS, *settings, path=path))
    lines = read_metrics(run_dir)
    # Were the copies to keep their first weights, the gap would grow with every step instead of being that of one.
    assert [line["train/policy_lag"] for line in lines] == [0, 1, 1, 1]
    versions = [{member.policy_version for member in members(stored(run_dir, step))} for step in range(1, 5)]
    assert versions == [{0}, {0}, {1}, {2}]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("objective.correction=none", *ROUNDS), "set objective.correction"),
        ((*STREAM, "rollout.early_start=true", "objective.preset=ppo"), "needs the whole batch"),
        ((*STREAM, "rollout.early_start=true", "objective.whiten=true"), "needs the whole batch"),
    ],
)
def test_what_cannot_be_corrected_or_cut_is_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        recipe(tmp_path, *overrides).build_objective()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("rollout.early_start=true", "rollout.max_lag=1"), 'use mode = "asynchronous"'),
        (("rollout.early_start=true", 'rollout.mode="asynchronous"'), "a max_lag of at least 1"),
        ((*STREAM, "rollout.early_start=true", "optim.num_epochs=2"), "set optim.num_epochs = 1"),
        ((*STREAM, "rollout.early_start=true", "optim.num_minibatches=4"), "made of whole groups"),
        ((*STREAM, "engine.kind=vllm"), 'use "served"'),
    ],
)
def test_recipes_that_cannot_overlap_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        recipe(tmp_path, *overrides)


@pytest.mark.parametrize(("overrides", "size"), [(ROUNDS, 2), (STREAM, 2), ((*ROUNDS, "distributed.sharding=fsdp"), 1)])
def test_ranks_that_would_sample_ahead_themselves_are_refused(tmp_path, overrides, size, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    small = recipe(tmp_path, *overrides)
    with pytest.raises(ConfigError, match=r'use engine\.kind = "served"'):
        require_supported(small, Ranks(0, size), Here(small))
