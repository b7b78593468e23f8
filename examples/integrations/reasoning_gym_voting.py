"""Three generators and an aggregator on items of reasoning-gym, graded by the data set's own score."""

import sys

import srpo_envs

try:
    env = srpo_envs.make("srpo_envs.integrations.reasoning_gym:reasoning_gym/Voting-v0", dataset="leg_counting")
except ImportError as error:
    sys.exit(str(error))

active = env.reset(seed=1)
print(active.members[0].prompt)
gold = env.episode.task["gold"]
drafts = env.step(active.outputs([rf"\boxed{{{gold}}}", "I do not know.", r"\boxed{7}"]))
final = env.step(drafts.next.outputs([r"Draft 1 counts right: \boxed{1}"]))
print("malformed:", [record.malformed_reason for record in drafts.event.members])
print("team reward:", final.info["correct"], final.reward)
