"""A team in TRL: SRPO as a subclass of `GRPOTrainer`, and a single agent in `GRPOTrainer` itself.

    python examples/integrations/train_with_trl.py            # the team, 8 generation batches
    python examples/integrations/train_with_trl.py 8 --solo   # one agent, TRL's own loss

Needs TRL: pip install trl==1.16.0
"""

import os
import sys
import tempfile

import torch
from trl import GRPOConfig, GRPOTrainer

import srpo_envs
from srpo_train.integrations.trl import EnvRollouts, SrpoTrainer, team_return
from srpo_train.policies.loading import resolve_source

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is an experimental feature of TRL
torch.set_num_threads(1)  # the model is so small that threads only get in each other's way

is_solo = "--solo" in sys.argv
num_batches = int(sys.argv[1]) if len(sys.argv) > 1 else 8
world = "srpo_envs/ArithmeticSingleAgent-v0" if is_solo else "srpo_envs/ArithmeticSolverVerifier-v0"

model = resolve_source("team", "builtin:tiny-team")  # any model TRL can train: a directory or a hub id
rollouts = EnvRollouts(lambda: srpo_envs.make(world, level=2), num_tasks=256)

with tempfile.TemporaryDirectory() as folder:
    # 64 episodes a generation batch, in groups of 8; two optimiser steps, each of two micro-batches.
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=8,
        max_steps=2 * num_batches,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        logging_steps=2,
        report_to=[],
        save_strategy="no",
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
    )
    if is_solo:
        trainer = GRPOTrainer(model, team_return, config, rollouts.dataset, rollout_func=rollouts)
    else:
        trainer = SrpoTrainer(model, rollouts, config)
    trainer.train()

rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
print("mean reward of each generation batch:", " ".join(f"{reward:.2f}" for reward in rewards))
if not is_solo:
    clipped = [line["srpo/clip_fraction"] for line in trainer.state.log_history if "srpo/clip_fraction" in line]
    print("share of events clipped:             ", " ".join(f"{share:.2f}" for share in clipped))
rollouts.close()
