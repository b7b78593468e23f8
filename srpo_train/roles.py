"""Which policy answers for which role: one mapping, read in one way by recipes, teams and the collector."""

from __future__ import annotations

from collections.abc import Mapping

from srpo_envs.errors import ConfigError, near_miss

ANY_ROLE = "*"
"""Stands for every role without an entry of its own."""


def policy_id_of(roles: Mapping[str, str], role: str) -> str:
    """Return the id of the policy that answers for a role.

    Raises:
        ConfigError: the role has no entry and there is no `ANY_ROLE`.
    """
    policy_id = roles.get(role, roles.get(ANY_ROLE))
    if policy_id is None:
        raise ConfigError(
            f"roles: no policy for role {role!r}{near_miss(role, roles)}; map it, or '{ANY_ROLE}' for all others"
        )
    return policy_id
