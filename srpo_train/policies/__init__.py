"""Policies: sets of parameters, and the teams that map roles to them."""

from srpo_train.policies.policy import Policy
from srpo_train.policies.team import Team

__all__ = ["Policy", "Team"]
