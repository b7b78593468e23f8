r"""The same world as a Gymnasium environment, alone and vectorised: one controller acts for the whole set."""

import gymnasium

import srpo_envs  # noqa: F401  (registers the ids)

ID = "srpo_envs/ArithmeticSolverVerifier-v0"
REPLIES = {"solver": r"\boxed{4}", "verifier": "<verify>approve</verify>", "aggregator": r"\boxed{4}"}

env = gymnasium.make(ID)
observation, info = env.reset(seed=3)
ended = False
while not ended:
    print(f"{info['event_id']}: {', '.join(info['agents'])}")
    action = {agent: REPLIES[agent.rpartition("_")[0]] for agent in env.action_space}
    observation, reward, terminated, truncated, info = env.step(action)
    ended = terminated or truncated
print("team reward:", reward)

envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode="sync")
observations, infos = envs.reset(seed=[0, 1])
for prompt in observations["solver_0"]["prompt"]:
    print(prompt.splitlines()[0])
envs.close()
