"""SRPO in TRL on several processes, by torchrun; rank 0 prints how far its gradients are from our own trainer's.

torchrun --nproc-per-node 2 tests/trl_ranks.py FOLDER
"""

from __future__ import annotations

import copy
import os
import sys

import torch
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig

import srpo_envs
from srpo_train.batching import event_minibatches
from srpo_train.collect import derive_seed
from srpo_train.experience import build_experience
from srpo_train.integrations.trl import EnvRollouts, SrpoTrainer
from srpo_train.objective import preset
from srpo_train.policies.loading import resolve_source
from srpo_train.policies.logprobs import ModelScorer
from srpo_train.set_gradient import accumulate_set_gradient, with_logprobs

TEAM = resolve_source("team", "builtin:tiny-team")
OBJECTIVE = preset("srpo", clip_low=0.02, clip_high=0.03)


class Watched(SrpoTrainer):
    """Keeps the episodes of all processes."""

    def _note(self, episodes, experience):
        self.all_episodes = episodes
        super()._note(episodes, experience)


class Keep(TrainerCallback):
    """Keeps the gradients and weights of each optimiser step."""

    def __init__(self) -> None:
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        self.steps.append((gradients, copy.deepcopy(getattr(model, "module", model).state_dict())))


def main(folder: str) -> None:
    torch.set_num_threads(1)
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=8,
        max_steps=2,
        learning_rate=2e-3,
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        bf16=False,
        use_cpu=True,
        ddp_backend="gloo",
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    rollouts = EnvRollouts(lambda: srpo_envs.make("srpo_envs/ArithmeticSolverVerifier-v0", level=2), num_tasks=16)
    keep = Keep()
    trainer = Watched(TEAM, rollouts, config, objective=OBJECTIVE, callbacks=[keep])
    trainer.train()
    rollouts.close()
    if trainer.accelerator.is_main_process:
        errors = [error_of(trainer, keep.steps, update) for update in range(2)]
        print("processes", trainer.accelerator.num_processes, "episodes", len(trainer.all_episodes), "errors", *errors)
    trainer.accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()


def error_of(trainer: Watched, steps: list, update: int) -> float:
    """Largest difference of a gradient from our own trainer's, over the largest gradient."""
    behavior, current = (AutoModelForCausalLM.from_pretrained(TEAM) for _ in range(2))
    gradients, weights = steps[update]
    current.load_state_dict(weights)
    scorers = [{"policy": ModelScorer(model=model, temperature=1.0)} for model in (behavior, current)]
    batch = build_experience(trainer.all_episodes, OBJECTIVE, 10_000).batch
    batch = with_logprobs(batch, scorers[0], max_tokens=10_000)
    part = list(event_minibatches(batch, 2, derive_seed(trainer.args.seed, "deal", 0)))[update]
    accumulate_set_gradient(OBJECTIVE, part, scorers[1], max_tokens=10_000)
    expected = [parameter.grad for parameter in current.parameters()]
    largest = max(float(each.abs().max()) for each in expected)
    return max(float((a - b).abs().max()) for a, b in zip(gradients, expected, strict=True)) / largest


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1])
