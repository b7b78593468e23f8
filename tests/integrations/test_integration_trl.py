"""TRL's real trainers on worlds of ours, on the CPU: what is trained on, and the gradient it is trained with."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import srpo_envs
from srpo_envs.errors import ConfigError, EngineError
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
    config = make_config(tmp_path, gradient_accumulation_steps=2)
    make_solo_trainer(rollouts, config, Watched).train()
    members = [episode.events[0].members[0] for episodes in rollouts.played for episode in episodes]
    expected = [(m.prompt_token_ids, m.token_ids, m.token_mask, False) for m in members]
    assert Counter(seen) == Counter(expected)
    assert len(seen) == 2 * 2 * 8
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


def reference_gradients(
    objective: Objective, model, episodes, config, update: int, reference=None
) -> list[torch.Tensor]:
    """Our own trainer's gradient of one optimiser step on the same episodes, with whole batches and its own scorer.

    Args:
        objective: what is maximised.
        model: pairs of the model before any update of the batch, which scores old log-probabilities, and as it is.
        episodes: the generation batch.
        config: TRL's, for the seed of the deal.
        update: which step.
        reference: the frozen model of the divergence penalty.
    """
    behavior, current = (ModelScorer(model=each, temperature=1.0, with_entropy=True) for each in model)
    batch = build_experience(episodes, objective, 10_000).batch
    rows = [dataclasses.replace(row, engine_logprobs=row.old_logprobs) for row in batch.rows]
    batch = with_logprobs(dataclasses.replace(batch, rows=rows), {"policy": behavior}, max_tokens=10_000)
    if objective.kl_coef:
        scorer = ModelScorer(model=reference, temperature=1.0)
        batch = with_logprobs(batch, {"policy": scorer}, max_tokens=10_000, name="reference_logprobs")
    parts = list(event_minibatches(batch, 2, derive_seed(config.seed, "deal", 0)))
    model[1].zero_grad()
    accumulate_set_gradient(objective, parts[update], {"policy": current}, max_tokens=10_000)
    return [parameter.grad.clone() for parameter in model[1].parameters()]


OBJECTIVES = {
    "srpo": ({"epsilon": 0.02, "epsilon_high": 0.03}, None),
    "srpo with every term": ({"epsilon": 0.02, "delta": 1.5, "beta": 0.05, "entropy_coef": 0.01}, None),
    "srpo, corrected": ({}, preset("srpo", correction="event", correction_cap=1.0001, clip_low=0.02, clip_high=0.02)),
    "dr_mas": ({}, preset("dr_mas", clip_low=0.02, clip_high=0.02)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_of_split_events_equal_our_own_trainers(tmp_path, name):
    from transformers import AutoModelForCausalLM, TrainerCallback

    from srpo_train.integrations.trl import SrpoTrainer, objective_of

    settings, objective = OBJECTIVES[name]
    # Three micro-batches a step, two steps a generation batch: the second is taken off the policy that sampled.
    config = make_config(
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        steps_per_generation=6,
        num_generations=12,
        max_grad_norm=0.0,
        **settings,
    )
    seen: list[tuple[list[torch.Tensor], dict[str, torch.Tensor]]] = []
    parts: list[list[torch.Tensor]] = [[]]

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            seen.append(
                ([parameter.grad.clone() for parameter in model.parameters()], copy.deepcopy(model.state_dict()))
            )
            parts.append([])

    class Watched(SrpoTrainer):
        def _compute_loss(self, model, inputs):
            parts[-1].append(inputs["event_index"])
            return super()._compute_loss(model, inputs)

    rollouts = make_rollouts(TEAM_WORLD)
    trainer = Watched(TEAM, rollouts, config, objective=objective, callbacks=[Keep()])
    objective = objective or objective_of(config)
    behavior = AutoModelForCausalLM.from_pretrained(TEAM)
    frozen = copy.deepcopy(behavior) if objective.kl_coef else None
    trainer.train()
    (episodes,) = rollouts.played
    assert len(seen) == 2
    clip_fractions = [line["srpo/clip_fraction"] for line in trainer.state.log_history if "srpo/clip_fraction" in line]
    assert clip_fractions[0] == 0.0
    assert 0.0 < clip_fractions[1] < 1.0
    for update, (gradients, state) in enumerate(seen):
        events = [set(part.tolist()) for part in parts[update]]
        assert len(events) == 3
        assert sum(map(len, events)) > len(set.union(*events))  # micro-batches share events
        current = AutoModelForCausalLM.from_pretrained(TEAM)
        current.load_state_dict(state)
        expected = reference_gradients(objective, (behavior, current), episodes, config, update, frozen)
        largest = max(float(each.abs().max()) for each in expected)
        error = max(float((a - b).abs().max()) for a, b in zip(gradients, expected, strict=True))
        assert error < 1e-5 * largest
    rollouts.close()


def test_the_reported_loss_is_the_objective(tmp_path):
    from srpo_train.integrations.trl import SrpoTrainer

    rollouts = make_rollouts(TEAM_WORLD)
    config = make_config(tmp_path, gradient_accumulation_steps=2, steps_per_generation=2, max_steps=1)
    trainer = SrpoTrainer(TEAM, rollouts, config)
    trainer.train()
    batch = build_experience(rollouts.played[0], preset("srpo"), 10_000).batch
    logged = next(line for line in trainer.state.log_history if "loss" in line)
    assert logged["loss"] == pytest.approx(-float(batch.advantage_E.mean()), abs=1e-6)  # every ratio is 1
    assert logged["srpo/num_events"] == batch.num_events
    assert logged["reward"] == pytest.approx(sum(e.reward for e in rollouts.played[0]) / 16)
    rollouts.close()


@pytest.mark.parametrize(
    ("settings", "objective", "message"),
    [
        ({"top_entropy_quantile": 0.5}, None, "top_entropy_quantile: expected 1.0, got 0.5"),
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


def test_without_trl_the_module_says_what_to_install(monkeypatch):
    import importlib
    import sys

    from srpo_envs.errors import MissingPackageError

    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "srpo_train.integrations.trl", raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'trl==1\.16\.0'"):
        importlib.import_module("srpo_train.integrations.trl")
