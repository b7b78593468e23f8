"""A single-player game of TextArena, played by three players who vote on each move."""

import sys

import srpo_envs

try:
    env = srpo_envs.make("srpo_envs.integrations.textarena:textarena/Play-v0", game="GuessTheNumber-v0", num_players=3)
except ImportError as error:
    sys.exit(str(error))

active = env.reset(seed=5)
print(active.members[0].prompt)
low, high = 1, 20
while active:
    guess = (low + high) // 2
    active = env.step(active.outputs([f"[{guess}]", f"Halve it: [{guess}]", "[20]"])).next
    if active:
        is_higher = active.members[0].prompt.rpartition("The target number is ")[2].startswith("higher")
        low, high = (guess + 1, high) if is_higher else (low, guess - 1)
print(f"{len(env.episode.events)} moves, the last {env.episode.info['answer']}, reward {env.episode.reward:g}")
