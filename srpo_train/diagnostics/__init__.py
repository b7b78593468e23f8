"""What each role does to the weights and what training does to each role; nothing here enters the gradient.

Means over a batch hide a role that goes its own way: a verifier of three tokens beside solvers of three hundred hardly
moves them. `roles` splits the cheap numbers of an update by role, `gradients` measures whose gradient it is, and
`tokens` tells whether the roles still write differently from one another.
"""
