"""A game of GEM played by a team of ours, and an environment of ours made by GEM."""

import sys

import srpo_envs

try:
    import gem

    from srpo_envs.integrations.gem import register_all
except ImportError as error:
    sys.exit(str(error))

env = srpo_envs.make("srpo_envs.integrations.gem:gem/Play-v0", game="game:GuessTheNumber-v0-easy", num_players=3)
active = env.reset(seed=5)
guess = 0
while active:
    guess += 1
    result = env.step(active.outputs([rf"\boxed{{{guess}}}", rf"\boxed{{{guess}}}", r"\boxed{9}"]))
    active = result.next
print(f"{guess} moves, GEM paid {env.episode.reward:g}")

REPLIES = {"solver": r"\boxed{4}", "verifier": "<verify>approve</verify>", "aggregator": r"\boxed{4}"}
register_all()
ours = gem.make("srpo_envs/ArithmeticSolverVerifierFixed-v0", num_solvers=3)
_, infos = ours.reset(seed=3)
while ours.agents:
    active = [agent for agent in ours.agents if infos[agent]["active"]]
    print(f"{infos[active[0]]['event_id']}: {', '.join(active)}")
    _, rewards, _, _, infos = ours.step({agent: REPLIES[agent.rpartition("_")[0]] for agent in active})
print("team reward:", max(rewards.values()))
