"""RLlib samples a team and trains it for one iteration of its PPO: letters in, letters out, one policy per role.

The default networks know nothing of language; the point is that the plumbing holds.
"""

import sys

try:
    from ray.rllib.algorithms.ppo import PPOConfig
except ImportError:
    sys.exit("this example needs RLlib: pip install 'ray[rllib]' torch")
from srpo_envs.integrations.rllib import RllibSetEnv

ROLES = {"solver", "verifier", "aggregator"}
config = (
    PPOConfig()
    .environment(
        RllibSetEnv,
        env_config={
            "env_id": "ArithmeticSolverVerifierFixed-v0",
            "env_kwargs": {"num_solvers": 3},
            "max_prompt_chars": 400,
            "max_action_chars": 16,
        },
    )
    .env_runners(num_env_runners=0)
    .multi_agent(policies=ROLES, policy_mapping_fn=lambda agent, *_, **__: agent.rpartition("_")[0])
    .training(train_batch_size=32, minibatch_size=16, num_epochs=1)
)
algorithm = config.build_algo()
result = algorithm.train()
print("episodes:", result["env_runners"]["num_episodes"])
for role in sorted(ROLES):
    print(f"{role}: loss {float(result['learners'][role]['total_loss']):.3f}")
algorithm.stop()
