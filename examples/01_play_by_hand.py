r"""Play one episode by hand: three drafts, a verdict, a revision, an answer; then read its event audit.

An environment announces *active sets*: the outputs that its next transition consumes together. You answer a whole set
at once, and what you wrote is parsed, never repaired.
"""

import srpo_envs
from srpo_envs.audit import format_event_table

env = srpo_envs.make("ArithmeticSolverVerifier-v0", num_solvers=3)
active = env.reset(seed=0)
print(active.members[0].prompt, end="\n\n")

gold = env.episode.task["gold"]
script = {
    "solver": [r"\boxed{0}", r"\boxed{1}", "I would rather not say."],  # the third draft is malformed: it is data
    "verifier": ["<verify>reject</verify>"],
    "revision": [rf"Second thoughts: \boxed{{{gold}}}"],
    "aggregator": [rf"\boxed{{{gold}}}"],
}
while active is not None:
    result = env.step(active.outputs(script[active.event_type]))
    if active.event_type == "revision":
        script["verifier"] = ["<verify>approve</verify>"]
    active = result.next

print(format_event_table(env.episode))
print(f"\nteam reward {env.episode.reward}, penalties {env.episode.penalty}")
print("returns by event:", [round(event.team_return, 2) for event in env.episode.events])
