"""A TorchRL collector gathers events of a team, as TensorDicts with texts in them."""

import sys

import srpo_envs

try:
    from torchrl.collectors import Collector
except ImportError:
    sys.exit("this example needs torchrl: pip install torchrl")
from srpo_envs.integrations.torchrl import TorchRLSetEnv

REPLIES = {"solver": r"\boxed{4}", "verifier": "<verify>approve</verify>", "aggregator": r"\boxed{4}"}


def make():
    return TorchRLSetEnv(srpo_envs.make("ArithmeticSolverVerifierFixed-v0", num_solvers=3))


agents = make().set_env.possible_agents


def policy(tensordict):
    for agent in agents:
        tensordict[agent, "action"] = REPLIES[agent.rpartition("_")[0]]
    return tensordict


collector = Collector(make, policy, frames_per_batch=6, total_frames=12)
for batch in collector:
    for event_id, size, reward in zip(batch["event_id"], batch["cardinality"], batch["next", "reward"], strict=True):
        print(f"{event_id}: K = {size.item()}, reward {reward.item():g}")
collector.shutdown()
