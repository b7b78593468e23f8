"""SRPO in verl: episodes as verl's batch, its registered advantages, and the coefficients of two updates.

Shows what the trainer of verl does with a batch and where the coefficients of pass one come in; the forward passes are
left to an untrained stand-in, so that it runs without a GPU. docs/integrations-training.md says what to configure.

    python examples/integrations/verl_policy_loss.py

Needs verl, see docs/integrations-training.md.
"""

import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

import srpo_envs
from srpo_train.collect import Collector, EpisodeJob
from srpo_train.engines.base import Sampling
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.integrations.verl import split_events, to_data_proto, update_coefficients
from srpo_train.objective import preset
from srpo_train.policies import Policy

# Episodes of a team. In a run of verl its agent loop plays them, see the documentation.
policy = Policy.load("team", "builtin:tiny-team", device="cpu")
collector = Collector(
    lambda: srpo_envs.make("srpo_envs/ArithmeticSolverVerifier-v0", level=2),
    {"team": TransformersEngine(policy)},
    {"*": "team"},
)
jobs = [
    EpisodeJob(episode_id=f"q{n // 8}/g{n}", group_id=f"q{n // 8}", task_index=n // 8, env_seed=0) for n in range(32)
]
episodes = collector.collect(jobs, Sampling()).episodes
collector.close()

data = to_data_proto(episodes, policy.tokenizer.pad_token_id)
print(f"{len(episodes)} episodes, {len(data)} rows; the first belongs to event {data.non_tensor_batch['uid'][0]}")

# verl's own advantage function finds the estimator under its name.
data = compute_advantage(data, "srpo", config=AlgoConfig(adv_estimator="srpo"))
data.batch["old_log_probs"] = data.batch["rollout_log_probs"]

config = FSDPActorConfig(
    strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=8, policy_loss=PolicyLossConfig(loss_mode="srpo")
)
loss_of = get_policy_loss_fn("srpo")
generator = torch.Generator().manual_seed(0)
for number, part in enumerate(split_events(data, 2, seed=0)):
    # verl: self._compute_old_log_prob(part), which scores with the weights as they are now.
    log_probs = part.batch["old_log_probs"]
    if number:
        log_probs = log_probs + 0.1 * torch.randn(log_probs.shape, generator=generator)
    report = update_coefficients(part, log_probs, preset("srpo"))
    total = 0.0
    for rows in part.split(8):  # micro-batches: they may cut an event in two
        batch = rows.batch
        loss, _ = loss_of(
            old_log_prob=batch["old_log_probs"],
            log_prob=batch["old_log_probs"],
            advantages=batch["advantages"],
            response_mask=batch["response_mask"],
            config=config,
        )
        total += loss.item()
    print(
        f"update {number}: {report['num_events']:.0f} events, ratio {report['ratio_min']:.2f} to "
        f"{report['ratio_max']:.2f}, clipped {report['clip_fraction']:.2f}, loss {total:+.4f}"
    )
