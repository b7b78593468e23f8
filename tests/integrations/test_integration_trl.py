"""TRL's real trainers on worlds of ours, on the CPU: what is trained on, and the gradient it is trained with."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import srpo_envs
from srpo_envs.errors import ConfigError, EngineError, MissingPackageError
from srpo_envs.records import Episode
from srpo_train.batching import event_minibatches
from srpo_train.collect import derive_seed
from srpo_train.experience import build_experience
from srpo_train.objective import Objective, preset
from srpo_train.policies.loading import resolve_source
from srpo_train.policies.logprobs import ModelScorer
from srpo_train.set_gradient import accumulate_set_gradient, with_logprobs

trl = pytest.importorskip("trl", reason="TRL is not installed (pip install trl==1.16.0)")
if not trl.__version__.startswith("1.16."):
    pytest.skip(f"written for the internals of TRL 1.16, found {trl.__version__}", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")  # TRL's own imports warn

TEAM = resolve_source("team", "builtin:tiny-team")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"
SOLO_WORLD, TEAM_WORLD = "srpo_envs/ArithmeticSingleAgent-v0", "srpo_envs/ArithmeticSolverVerifier-v0"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_rollouts(world: str, edit: Callable[[Episode], Episode] = lambda episode: episode):
    """Rollouts that keep every episode they play in ``played``, edited before TRL sees it."""
    from srpo_train.integrations.trl import EnvRollouts

    class Recorded(EnvRollouts):
        played: list[tuple[Episode, ...]]

        def episodes(self, prompts: Sequence[str], trainer: Any) -> tuple[Episode, ...]:
            found = tuple(map(edit, super().episodes(prompts, trainer)))
            self.played.append(found)
            return found

    rollouts = Recorded(lambda: srpo_envs.make(world, level=2), num_tasks=16, seed=3)
    rollouts.played = []
    return rollouts


def make_config(folder: Path, **settings: Any):
    from trl import GRPOConfig

    defaults = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 8,
        "max_steps": 2,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    return GRPOConfig(**(defaults | settings))


def make_solo_trainer(rollouts, config, kind: type | None = None):
    from trl import GRPOTrainer

    from srpo_train.integrations.trl import team_return

    return (kind or GRPOTrainer)(TEAM, team_return, config, rollouts.dataset, rollout_func=rollouts)


# --- GRPOTrainer on a world of ours -------------------------------------------------------------------------------


def hide_first_token(episode: Episode) -> Episode:
    """Say that the environment wrote the first token of the response."""
    (event,) = episode.events
    (member,) = event.members
    member = dataclasses.replace(member, token_mask=(0, *member.token_mask[1:]))
    return dataclasses.replace(episode, events=(dataclasses.replace(event, members=(member,)),))


def test_grpo_trains_on_the_sampled_tokens_and_masks_all_others(tmp_path, monkeypatch):
    from trl import GRPOTrainer

    seen: list[tuple] = []

    class Watched(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            is_prompt, is_real = inputs["prompt_mask"].bool(), inputs["completion_mask"].bool()
            mask = inputs["completion_mask"] * inputs["tool_mask"]
            for row in range(len(mask)):
                seen.append(
                    (
                        tuple(inputs["prompt_ids"][row][is_prompt[row]].tolist()),
                        tuple(inputs["completion_ids"][row][is_real[row]].tolist()),
                        tuple(mask[row][is_real[row]].tolist()),
                        bool(mask[row][~is_real[row]].any()),
                    )
                )
            return loss

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rollouts = make_rollouts(SOLO_WORLD, edit=hide_first_token)
    config = make_config(tmp_path, gradient_accumulation_steps=2, max_steps=1)
    make_solo_trainer(rollouts, config, Watched).train()
    members = [episode.events[0].members[0] for episodes in rollouts.played for episode in episodes]
    expected = [(m.prompt_token_ids, m.token_ids, m.token_mask, False) for m in members]
    assert Counter(seen) == Counter(expected)
    assert len(seen) == 2 * 8
    rollouts.close()


def test_grpo_learns_single_agent_arithmetic(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rollouts = make_rollouts(SOLO_WORLD)
    config = make_config(
        tmp_path, per_device_train_batch_size=64, num_generations=16, max_steps=6, learning_rate=5e-4, adam_beta2=0.95
    )
    trainer = make_solo_trainer(rollouts, config)
    trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    returns = [sum(e.events[0].team_return for e in episodes) / len(episodes) for episodes in rollouts.played]
    assert rewards == pytest.approx(returns, abs=1e-6)
    assert sum(rewards[-2:]) / 2 > rewards[0] + 0.15  # 0.19 to 0.73 where it was written
    rollouts.close()


def test_grpo_refuses_a_team_and_points_to_the_trainer_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rollouts = make_rollouts(TEAM_WORLD)
    with pytest.raises(ConfigError, match=r"cardinality \[3, 1.*SrpoTrainer"):
        make_solo_trainer(rollouts, make_config(tmp_path)).train()
    rollouts.close()


def test_a_lost_episode_is_an_error_for_it_would_shift_every_reward(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rollouts = make_rollouts(SOLO_WORLD)
    trainer = make_solo_trainer(rollouts, make_config(tmp_path))
    whole = rollouts.episodes
    monkeypatch.setattr(rollouts, "episodes", lambda prompts, trainer: whole(prompts, trainer)[1:])
    with pytest.raises(EngineError, match="1 of 2 episodes"):
        rollouts([rollouts.dataset[0]["prompt"]] * 2, trainer)
    rollouts.close()


def test_sampling_our_engine_does_not_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rollouts = make_rollouts(SOLO_WORLD)
    trainer = make_solo_trainer(rollouts, make_config(tmp_path, repetition_penalty=1.1))
    with pytest.raises(ConfigError, match=r"repetition_penalty: expected 1.0, got 1.1"):
        rollouts.episodes([rollouts.dataset[0]["prompt"]], trainer)
    rollouts.close()


# --- SRPO as a trainer --------------------------------------------------------------------------------------------


def reference(objective: Objective, models, episodes, seed: int, update: int) -> tuple[float, list[torch.Tensor]]:
    """Our own trainer's value and gradient of one optimiser step on the same episodes, by its own scorer.

    Args:
        objective: what is maximised.
        models: as it was before any update of the generation batch, as it is, and the divergence penalty's.
        episodes: the generation batch.
        seed: of the deal.
        update: which step.
    """
    behavior, current, frozen = (ModelScorer(model=each, temperature=1.0, with_entropy=True) for each in models)
    batch = build_experience(episodes, objective, 10_000).batch
    rows = [dataclasses.replace(row, engine_logprobs=row.old_logprobs) for row in batch.rows]
    batch = with_logprobs(dataclasses.replace(batch, rows=rows), {"policy": behavior}, max_tokens=10_000)
    if objective.kl_coef:
        batch = with_logprobs(batch, {"policy": frozen}, max_tokens=10_000, name="reference_logprobs")
    part = list(event_minibatches(batch, 2, derive_seed(seed, "deal", 0)))[update]
    step = accumulate_set_gradient(objective, part, {"policy": current}, max_tokens=10_000)
    return step.value, [parameter.grad for parameter in models[1].parameters()]


OBJECTIVES = {
    "srpo": ({"epsilon": 0.02, "epsilon_high": 0.03}, None),
    "srpo with every term": ({"epsilon": 0.02, "delta": 1.5, "beta": 0.05, "entropy_coef": 0.01}, None),
    "dr_mas, corrected": ({}, preset("dr_mas", clip_low=0.02, correction="event", correction_cap=1.0001)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_of_split_events_equal_our_own_trainers(tmp_path, name):
    from transformers import AutoModelForCausalLM, TrainerCallback

    from srpo_train.integrations.trl import SrpoTrainer, objective_of

    settings, objective = OBJECTIVES[name]
    # Three micro-batches a step, two steps a generation batch: the second is taken off the policy that sampled.
    settings |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "steps_per_generation": 6}
    config = make_config(tmp_path, num_generations=12, max_grad_norm=0.0, **settings)
    steps: list[tuple[list[torch.Tensor], dict[str, torch.Tensor]]] = []
    micro_batches: list[set[int]] = []

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            steps.append((gradients, copy.deepcopy(model.state_dict())))

    class Watched(SrpoTrainer):
        def _compute_loss(self, model, inputs):
            micro_batches.append(set(inputs["event_index"].tolist()))
            return super()._compute_loss(model, inputs)

    rollouts = make_rollouts(TEAM_WORLD)
    trainer = Watched(TEAM, rollouts, config, objective=objective, callbacks=[Keep()])
    trainer.train()
    (episodes,) = rollouts.played
    rollouts.close()
    log = [line for line in trainer.state.log_history if "loss" in line]
    assert log[0]["srpo/clip_fraction"] == 0.0
    assert 0.0 < log[1]["srpo/clip_fraction"] < 1.0
    assert log[0]["reward"] == pytest.approx(sum(episode.reward for episode in episodes) / 24)
    assert len(steps) == 2
    assert len(micro_batches) == 6
    for update, (gradients, weights) in enumerate(steps):
        events = micro_batches[3 * update : 3 * update + 3]
        assert sum(map(len, events)) > len(set.union(*events)) == log[update]["srpo/num_events"]  # some are split
        models = [AutoModelForCausalLM.from_pretrained(TEAM) for _ in range(3)]
        models[1].load_state_dict(weights)
        objective = objective or objective_of(config)
        value, expected = reference(objective, models, episodes, config.seed, update)
        largest = max(float(each.abs().max()) for each in expected)
        error = max(float((a - b).abs().max()) for a, b in zip(gradients, expected, strict=True))
        assert error < 1e-5 * largest
        if update or not objective.entropy_coef:  # what is reported of the first leaves the entropy out
            assert log[update]["loss"] == pytest.approx(-value, rel=1e-4, abs=1e-6)


def test_an_adapter_is_trained_and_its_base_is_not(tmp_path):
    peft = pytest.importorskip("peft")

    from srpo_train.integrations.trl import SrpoTrainer

    rollouts = make_rollouts(TEAM_WORLD)
    config = make_config(tmp_path, steps_per_generation=2, num_generations=8, log_completions=True)
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj"])
    trainer = SrpoTrainer(TEAM, rollouts, config, peft_config=adapter)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    ratios = [line["srpo/ratio_max"] for line in trainer.state.log_history if "loss" in line]
    assert ratios[0] == 1.0 < ratios[1]
    rollouts.close()


@pytest.mark.slow
def test_gradients_on_two_processes_equal_our_own_trainers(tmp_path):
    script = Path(__file__).resolve().parents[1] / "trl_ranks.py"
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run([*torchrun, str(script), str(tmp_path)], capture_output=True, text=True, timeout=280)
    found = [line for line in done.stdout.splitlines() if line.startswith("processes 2 episodes 32 errors")]
    assert found, done.stderr
    assert max(map(float, found[0].split()[-2:])) < 1e-5


@pytest.mark.parametrize(
    ("settings", "objective", "message"),
    [
        ({"top_entropy_quantile": 0.5}, None, "top_entropy_quantile: expected 1.0, got 0.5"),
        ({"top_p": 0.9}, None, "top_p: expected 1.0, got 0.9"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 3, "num_generations": 8}, None, "no multiple"),
        ({}, preset("srpo", kl_coef=0.1), "set beta in GRPOConfig"),
    ],
)
def test_settings_without_effect_are_refused(tmp_path, settings, objective, message):
    from srpo_train.integrations.trl import SrpoTrainer

    rollouts = make_rollouts(TEAM_WORLD)
    with pytest.raises(ConfigError, match=message):
        SrpoTrainer(TEAM, rollouts, make_config(tmp_path, **settings), objective=objective)
    rollouts.close()


def test_the_example_trains_a_team(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["train_with_trl.py", "1"])
    runpy.run_path(str(EXAMPLES / "train_with_trl.py"), run_name="__main__")
    assert "mean reward of each generation batch: 0." in capsys.readouterr().out


def test_without_trl_the_module_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "srpo_train.integrations.trl", raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'trl==1\.16\.0'"):
        importlib.import_module("srpo_train.integrations.trl")
