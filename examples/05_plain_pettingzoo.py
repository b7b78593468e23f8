r"""The same world as a PettingZoo parallel environment: every agent stays, `active` says who is asked."""

import pettingzoo

import srpo_envs  # noqa: F401  (registers the ids)

env = pettingzoo.make("parallel", "srpo_envs/ArithmeticSolverVerifier-v0")
observations, infos = env.reset(seed=3)
replies = {"solver": r"\boxed{4}", "verifier": "<verify>approve</verify>", "aggregator": r"\boxed{4}"}

while env.agents:
    active = [agent for agent in env.agents if observations[agent]["active"]]
    print(f"{infos[active[0]]['event_id']}: {', '.join(active)}")
    # Actions of agents that are not active are private drafts: ignored, and free to be left out.
    actions = {agent: replies[agent.rpartition("_")[0]] for agent in active}
    observations, rewards, terminations, truncations, infos = env.step(actions)

print("team reward:", max(rewards.values()))
