"""The training loop end to end on the embedded policy: learning, files, and runs that are killed and resumed."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from srpo_envs.audit import audit_run
from srpo_envs.errors import ConfigError
from srpo_envs.records import read_episodes
from srpo_train.checkpoint import CheckpointStore
from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing
from srpo_train.policies import Policy

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "tiny-arithmetic.toml"

# Six tasks, two prompts a step: epochs end after steps 3, 6 and 9. Checkpoints after steps 2, 4, 6 and 8.
SMALL = (
    "env.kwargs.size=6",
    "eval.every=4",
    "eval.num_tasks=4",
    "eval.samples_per_task=1",
    "eval.temperature=0.0",
    "rollout.prompts_per_step=2",
    "rollout.group_size=4",
    "train.num_steps=8",
    "train.checkpoint_every=2",
    "log.save_events=all",
    "rollout.straggler_grace_s=60",  # so that a busy machine changes no batch
    "log.tensorboard=false",
)


def small_recipe(folder, *overrides):
    return load_recipe(RECIPE, [f"output_dir={folder}", *SMALL, *overrides])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    """A run that was never interrupted."""
    return train(small_recipe(tmp_path_factory.mktemp("whole")))


def test_a_run_leaves_what_the_docs_promise(whole_run):
    names = {path.name for path in whole_run.iterdir()}
    assert {"recipe.toml", "metrics.jsonl", "events", "checkpoints", "report.md"} <= names
    assert [line["step"] for line in read_metrics(whole_run)] == list(range(9))
    assert [checkpoint.name for checkpoint in sorted((whole_run / "checkpoints").iterdir())] == [
        "step-000006",
        "step-000008",
    ]
    assert len(list((whole_run / "events").glob("step-*.jsonl"))) == 8
    assert load_recipe(whole_run / "recipe.toml") == small_recipe(whole_run.parent)


def test_every_stored_event_passes_the_audit_and_replays(whole_run):
    report = audit_run(whole_run, replay=True)
    assert report.is_ok, report.summary()


def test_the_samples_of_a_step_carry_the_version_that_drew_them(whole_run):
    # br-038
    for step in (1, 8):
        versions = {
            member.policy_version
            for episode in read_episodes(whole_run / "events" / f"step-{step:06d}.jsonl")
            for event in episode.events
            for member in event.members
        }
        assert versions == {step - 1}


def test_the_checkpoint_is_a_transformers_model_with_the_trained_weights(whole_run):
    newest = CheckpointStore(whole_run / "checkpoints", is_read_only=True).latest()
    trained = Policy.load("team", newest.path / "team", device="cpu").model.state_dict()
    start = Policy.load("team", "builtin:tiny-team", device="cpu").model.state_dict()
    assert trained.keys() == start.keys()
    assert any(not torch.equal(trained[name], start[name]) for name in trained)


def test_a_finished_run_is_not_mixed_with_another(whole_run):
    with pytest.raises(ConfigError, match="already holds a run"):
        train(small_recipe(whole_run.parent))
    with pytest.raises(ConfigError, match=r"differs from the stored one in optim\.lr"):
        train(small_recipe(whole_run.parent, "optim.lr=1e-3"), resume=True)


def test_resuming_a_finished_run_changes_nothing(whole_run):
    before = (whole_run / "metrics.jsonl").read_bytes()
    train(small_recipe(whole_run.parent), resume=True)
    assert (whole_run / "metrics.jsonl").read_bytes() == before


def test_a_longer_run_continues_a_finished_one(whole_run, tmp_path):
    first = train(small_recipe(tmp_path, "train.num_steps=4"))
    train(small_recipe(tmp_path), resume=True)
    assert _numbers(first) == _numbers(whole_run)


def test_a_token_budget_ends_the_run_with_the_step_that_reaches_it(whole_run, tmp_path):
    spent = itertools.accumulate(line["rollout/num_tokens"] for line in read_metrics(whole_run) if line["step"])
    up_to = dict(enumerate(spent, start=1))
    budgeted = f"train.token_budget={int(up_to[2]) + 1}"  # one token more than two steps: reached within the third
    run_dir = train(small_recipe(tmp_path, budgeted))
    lines = read_metrics(run_dir)
    assert lines[-1]["step"] == 3
    assert "eval/accuracy" in lines[-1]  # the last step is evaluated and saved whatever its number
    assert CheckpointStore(run_dir / "checkpoints", is_read_only=True).latest().step == 3
    assert _numbers(run_dir)[:3] == _numbers(whole_run)[:3]


def test_tokens_of_before_a_resume_count_in_the_budget(whole_run, tmp_path):
    whole = sum(line.get("rollout/num_tokens", 0) for line in read_metrics(whole_run))
    train(small_recipe(tmp_path, "train.num_steps=4"))
    run_dir = train(small_recipe(tmp_path, f"train.token_budget={int(whole)}", "train.num_steps=50"), resume=True)
    assert _numbers(run_dir) == _numbers(whole_run)
    train(small_recipe(tmp_path, f"train.token_budget={int(whole)}", "train.num_steps=50"), resume=True)
    assert read_metrics(run_dir)[-1]["step"] == 8


def test_a_critic_is_trained_stored_and_resumed_bit_for_bit(tmp_path):
    # From the plain recipe by one override, and with a learning rate of the critic's own.
    ppo = ("objective.preset=ppo", "critic.optim.lr=1e-3", "eval.every=0")
    whole = train(small_recipe(tmp_path / "whole", *ppo, "train.num_steps=4"))
    parts = train(small_recipe(tmp_path / "parts", *ppo, "train.num_steps=2"))
    train(small_recipe(tmp_path / "parts", *ppo, "train.num_steps=4"), resume=True)
    assert _numbers(parts) == _numbers(whole)
    for name in ("_critic/model.safetensors", "team/model.safetensors"):
        ours, theirs = (folder / "checkpoints" / "step-000004" / name for folder in (parts, whole))
        assert ours.read_bytes() == theirs.read_bytes()
    first, *_, last = _numbers(whole)
    assert first["train/value_mean"] == 0.0  # the head starts at 0
    assert last["train/value_mean"] != 0.0
    assert last["train/value_lr"] == 1e-3
    assert last["train/lr"] == 2e-4


def test_a_critic_that_nothing_reads_or_that_cannot_read_is_refused_before_anything_is_sampled(tmp_path):
    with pytest.raises(ConfigError, match="'group_relative' read no critic"):
        train(small_recipe(tmp_path, "critic.value_clip=0.1"))
    with pytest.raises(ConfigError, match="policy 'team' has another tokenizer"):
        train(small_recipe(tmp_path, "objective.preset=ppo", "critic.model=builtin:tiny-searchers"))
    assert not (tmp_path / "tiny-arithmetic" / "metrics.jsonl").exists()


def test_questions_without_a_difference_are_left_out_and_may_leave_nothing(tmp_path):
    # Long chains are hardly ever solved, and pairs of episodes are often alike.
    hard = ("env.kwargs.level=4", "rollout.group_size=2", "objective.preset=dapo", "train.num_steps=4", "eval.every=0")
    lines = _numbers(train(small_recipe(tmp_path, *hard)))
    for line in lines:
        left = line["rollout/num_events"] - line["train/num_uniform_events"]
        assert line.get("train/num_events", 0.0) == left
    assert any(line["train/num_uniform_events"] == line["rollout/num_events"] for line in lines)
    assert lines[-1].get("train/policy_version", 0) < 4  # a step with nothing left moved nothing


def test_another_seed_gives_another_run(whole_run, tmp_path):
    other = train(small_recipe(tmp_path, "seed=1", "train.num_steps=1"))
    assert _numbers(other)[1] != _numbers(whole_run)[1]


def test_isolated_policies_train_and_are_saved_one_by_one(tmp_path):
    run_dir = train(
        load_recipe(
            ROOT / "recipes" / "tiny-arithmetic-isolated.toml",
            [f"output_dir={tmp_path}", *SMALL, "train.num_steps=1"],
        )
    )
    saved = {path.name for path in (run_dir / "checkpoints" / "step-000001").iterdir() if path.is_dir()}
    assert saved == {"solver", "verifier", "aggregator"}


# --- several policies ---------------------------------------------------------------------------------------------

LORA = ROOT / "recipes" / "tiny-arithmetic-lora.toml"
ROLES = ("solver", "verifier", "aggregator")


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory) -> Path:
    """A run of one adapter per role that was never interrupted."""
    pytest.importorskip("peft")
    return train(load_recipe(LORA, [f"output_dir={tmp_path_factory.mktemp('lora')}", *SMALL]))


def test_adapters_are_stored_one_by_one_in_peft_s_format_and_nothing_else(lora_run):
    newest = lora_run / "checkpoints" / "step-000008"
    assert {path.name for path in newest.iterdir() if path.is_dir()} == set(ROLES)
    for role in ROLES:
        names = {path.name for path in (newest / role).iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
        assert not any(name.startswith("model") for name in names)


def test_every_adapter_of_a_run_has_moved_and_differs(lora_run):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = Policy.load("base", "builtin:tiny-team", device="cpu")
    ids = torch.tensor([base.encode_prompt("Compute 3+4 from left to right, mod 10.")])
    outputs = []
    for role in ROLES:
        plain = AutoModelForCausalLM.from_pretrained(base.model.name_or_path)
        model = PeftModel.from_pretrained(plain, lora_run / "checkpoints" / "step-000008" / role)
        with torch.no_grad():
            outputs.append(model(input_ids=ids).logits)
    with base.sampling_mode():
        outputs.append(base.model(input_ids=ids).logits)
    for index, ours in enumerate(outputs):
        assert all((ours - other).abs().max() > 1e-3 for other in outputs[:index])


def test_a_run_of_adapters_is_evaluated_as_it_was_in_training(lora_run):
    import json

    from typer.testing import CliRunner

    from srpo_train.cli import app

    options = ["--num-tasks", "4", "--samples", "1", "--temperature", "0", "--json"]  # as in training, without chance
    result = CliRunner().invoke(app, ["eval", str(lora_run), *options])
    assert result.exit_code == 0, result.output
    (scores,) = json.loads(result.stdout)["benchmarks"].values()
    last = list(read_metrics(lora_run))[-1]
    assert scores["avg_at_k"]["mean"] == last["eval/accuracy"]
    for name in ("reward_mean", "response_length/solver", "valid_rate/verifier"):
        assert scores["metrics"][name] == pytest.approx(last[f"eval/{name}"])


def mixed_recipe(folder, *overrides):
    """A full solver, an adapter for the verifier, and an aggregator that is not trained."""
    return load_recipe(
        LORA,
        [
            f"output_dir={folder}",
            *SMALL,
            "policies.solver={model = 'builtin:tiny-team', device = 'cpu'}",
            "policies.aggregator={model = 'builtin:tiny-team', device = 'cpu', trainable = false}",
            "policies.solver.optim.lr=2e-4",
            "eval.every=0",
            "train.num_steps=2",
            *overrides,
        ],
    )


def test_a_mixed_team_trains_stores_and_resumes_what_is_trained(tmp_path):
    pytest.importorskip("peft")
    whole = train(mixed_recipe(tmp_path / "whole", "train.num_steps=4"))
    run_dir = train(mixed_recipe(tmp_path / "parts"))
    train(mixed_recipe(tmp_path / "parts", "train.num_steps=4"), resume=True)
    assert _numbers(run_dir) == _numbers(whole)
    newest = run_dir / "checkpoints" / "step-000004"
    assert {path.name for path in newest.iterdir() if path.is_dir()} == {"solver", "verifier"}
    assert (newest / "solver" / "model.safetensors").is_file()
    assert (newest / "verifier" / "adapter_model.safetensors").is_file()
    last = _numbers(run_dir)[-1]
    assert (last["train/lr/solver"], last["train/lr/verifier"]) == (2e-4, 1e-3)
    assert "train/grad_norm/aggregator" not in last
    versions = {member.policy_id: member.policy_version for member in _members(run_dir, 4)}
    assert versions == {"solver": 3, "verifier": 3, "aggregator": 0}


def test_the_references_of_a_team_are_in_memory_once(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    from srpo_train.policies import policy, shared_base

    read = []
    for module in (policy, shared_base):
        original = module.read_checkpoint
        monkeypatch.setattr(module, "read_checkpoint", lambda *a, load=original: read.append(a[0]) or load(*a))
    run_dir = train(mixed_recipe(tmp_path, "objective.kl_coef=0.1", "train.num_steps=1"))
    # The solver's own weights, and one frozen model below the verifier's adapter, as aggregator and as all references.
    assert read == ["solver", "verifier"]
    assert _numbers(run_dir)[-1]["train/num_updates"] == 2


def test_a_policy_s_own_sampling_reaches_its_rollouts_alone(tmp_path):
    pytest.importorskip("peft")
    hot = ("policies.verifier.sampling.temperature=5.0", "train.num_steps=1")
    run_dir = train(mixed_recipe(tmp_path, *hot))
    entropy = {role: [] for role in ROLES}
    for member in _members(run_dir, 1):
        entropy[member.policy_id] += [-value for value in member.behavior_logprobs]
    means = {role: sum(values) / len(values) for role, values in entropy.items()}
    assert means["verifier"] > 1.0 > max(means["solver"], means["aggregator"])
    assert _numbers(run_dir)[-1]["train/engine_gap"] < 1e-4  # the trainer scores each at its own temperature too


def test_under_top_k_and_top_p_the_trainer_scores_within_what_was_left(tmp_path):
    truncated = ("sampling.top_k=6", "sampling.top_p=0.95", "objective.correction=event", "train.num_steps=1")
    run_dir = train(small_recipe(tmp_path, *truncated))
    members = _members(run_dir, 1)
    sizes = {len(left) for member in members for left in member.kept_token_ids}
    assert max(sizes) <= 6 and len(sizes) > 2
    assert all(len(member.kept_token_ids) == len(member.token_ids) for member in members)
    numbers = _numbers(run_dir)[-1]
    assert numbers["train/engine_gap_max"] < 1e-4
    assert numbers["train/clip_fraction"] == 0.0
    assert audit_run(run_dir).is_ok


def _members(run_dir, step):
    from srpo_envs.records import read_episodes

    episodes = read_episodes(run_dir / "events" / f"step-{step:06d}.jsonl")
    return [member for episode in episodes for event in episode.events for member in event.members]


def test_a_held_out_set_that_is_too_small_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match="257 tasks to evaluate, but 'arithmetic-l2-test' has 256"):
        train(small_recipe(tmp_path, "eval.num_tasks=257", "eval.at_start=false", "env.kwargs.size=256"))


def test_asynchronous_collection_trains_on_whole_groups_of_the_version_in_training(tmp_path):
    run_dir = train(
        small_recipe(tmp_path, "rollout.mode=asynchronous", "rollout.oversample=2", "train.num_steps=3", "eval.every=3")
    )
    assert audit_run(run_dir, replay=True).is_ok
    steps = read_metrics(run_dir)[1:]
    assert [line["rollout/num_episodes"] for line in steps] == [8, 8, 8]
    assert [line["rollout/num_surplus_episodes"] for line in steps] == [4, 4, 4]
    assert [line["train/policy_version"] for line in steps] == [1, 2, 3]
    for step in (1, 2, 3):
        episodes = list(read_episodes(run_dir / "events" / f"step-{step:06d}.jsonl"))
        groups = Counter(episode.group_id for episode in episodes)
        assert list(groups.values()) == [4, 4]
        versions = {member.policy_version for e in episodes for event in e.events for member in event.members}
        assert versions == {step - 1}


# --- killed runs --------------------------------------------------------------------------------------------------

_DRIVER = """
import sys
from srpo_train.config import load_recipe
from srpo_train.loop import train
train(load_recipe(sys.argv[1], sys.argv[2:]), resume=True)
"""


def _start(folder, recipe=RECIPE):
    arguments = [sys.executable, "-c", _DRIVER, str(recipe), f"output_dir={folder}", *SMALL]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _kill_when(folder, is_time, recipe=RECIPE, limit_s=120.0):
    """Start or resume the run and kill it the moment a condition holds."""
    process = _start(folder, recipe)
    deadline = time.monotonic() + limit_s
    while not is_time() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, f"the run ended before it could be killed:\n{output}"


def _numbers(run_dir):
    return [without_timing(line) for line in read_metrics(run_dir)]


def test_a_run_killed_again_and_again_arrives_at_the_same_numbers(whole_run, tmp_path):
    run_dir = tmp_path / "tiny-arithmetic"

    def has_step(step):
        return lambda: any(line["step"] >= step for line in read_metrics(run_dir))

    # Before the first step; before the first checkpoint; at the end of an epoch, past a checkpoint; while a later
    # checkpoint is being written, or just after.
    _kill_when(tmp_path, has_step(0))
    _kill_when(tmp_path, has_step(1))
    _kill_when(tmp_path, has_step(3))
    _kill_when(tmp_path, lambda: any((run_dir / "checkpoints").glob("step-000006*")))
    last = _start(tmp_path)
    output, _ = last.communicate(timeout=120)
    assert last.returncode == 0, output

    assert _numbers(run_dir) == _numbers(whole_run)
    for name in ("team/model.safetensors",):
        ours, theirs = (folder / "checkpoints" / "step-000008" / name for folder in (run_dir, whole_run))
        assert ours.read_bytes() == theirs.read_bytes()
    for step in range(1, 9):
        assert _events(run_dir, step) == _events(whole_run, step)


def test_a_killed_run_with_adapters_arrives_at_the_same_numbers(lora_run, tmp_path):
    run_dir = tmp_path / LORA.stem
    _kill_when(tmp_path, lambda: any(line["step"] >= 3 for line in read_metrics(run_dir)), LORA)
    last = _start(tmp_path, LORA)
    output, _ = last.communicate(timeout=120)
    assert last.returncode == 0, output
    assert _numbers(run_dir) == _numbers(lora_run)
    for policy_id in ROLES:
        name = f"checkpoints/step-000008/{policy_id}/adapter_model.safetensors"
        assert (run_dir / name).read_bytes() == (lora_run / name).read_bytes()


def _events(run_dir, step):
    """The episodes of a step without what a clock wrote."""

    def untimed(event):
        members = tuple(dataclasses.replace(member, timings={}) for member in event.members)
        calls = tuple(dataclasses.replace(call, duration_s=0.0) for call in event.tool_calls)
        return dataclasses.replace(event, members=members, tool_calls=calls)

    path = run_dir / "events" / f"step-{step:06d}.jsonl"
    return [dataclasses.replace(episode, events=tuple(map(untimed, episode.events))) for episode in read_episodes(path)]
