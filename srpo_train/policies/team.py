"""A team: which policy answers for which role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from srpo_envs.errors import ConfigError, UnknownIdError, near_miss
from srpo_train.policies.policy import Policy
from srpo_train.policies.shared_base import Bases
from srpo_train.roles import ANY_ROLE, policy_id_of


class Team:
    """Policies by id, and the id that answers for each role.

    One policy for all roles is a *shared* team, one for each role an *isolated* one, anything between a mixed one::

        Team({"all": policy}, {"*": "all"})                                  # shared
        Team({"s": p, "v": q}, {"solver": "s", "verifier": "v"})             # isolated
        Team({"s": p, "rest": q}, {"solver": "s", "*": "rest"})              # mixed

    Args:
        policies: Policies by id; each key equals the policy's own `policy_id`.
        roles: Policy id by role; ``"*"`` answers for every role not named.

    Raises:
        ConfigError: there is no policy or no role, a key differs from its policy's id, or a role names no policy.
    """

    def __init__(self, policies: Mapping[str, Policy], roles: Mapping[str, str]) -> None:
        _check_policies(policies)
        _check_roles(policies, roles)
        self._policies = dict(policies)
        self._roles = dict(roles)

    @classmethod
    def shared(cls, policy: Policy) -> Team:
        """Return the team in which one policy answers for every role."""
        return cls({policy.policy_id: policy}, {ANY_ROLE: policy.policy_id})

    @classmethod
    def load(
        cls,
        specs: Mapping[str, str | Path | Mapping[str, Any]],
        roles: Mapping[str, str],
        bases: Bases | None = None,
    ) -> Team:
        """Load every policy of a team; a frozen model that several of them stand on is loaded once.

        Args:
            specs: By policy id, a source or the keyword arguments of `Policy.load`, ``source`` among them.
            roles: Policy id by role, with ``"*"`` as the default.
            bases: Frozen models that are in memory already; what is loaded joins them.

        Raises:
            ConfigError: the roles do not fit the ids, or a specification has no source or an unknown option.
            PolicyLoadError: a checkpoint cannot be loaded.
        """
        _check_roles(specs, roles)  # before minutes are spent on loading
        bases = Bases() if bases is None else bases
        return cls({policy_id: _load_policy(policy_id, spec, bases) for policy_id, spec in specs.items()}, roles)

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Policies by id, read-only."""
        return MappingProxyType(self._policies)

    @property
    def roles(self) -> Mapping[str, str]:
        """Policy id by role, read-only."""
        return MappingProxyType(self._roles)

    @property
    def trained(self) -> list[Policy]:
        """The policies that an update moves; the others play as they are."""
        return [policy for policy in self if policy.is_trainable]

    def __iter__(self) -> Iterator[Policy]:
        return iter(self._policies.values())

    def __len__(self) -> int:
        return len(self._policies)

    def __getitem__(self, policy_id: str) -> Policy:
        """Return a policy by id.

        Raises:
            UnknownIdError: no policy has this id.
        """
        if policy_id not in self._policies:
            raise UnknownIdError(f"the team has no policy {policy_id!r}{near_miss(policy_id, self._policies)}")
        return self._policies[policy_id]

    def policy_of(self, role: str) -> Policy:
        """Return the policy that answers for a role.

        Raises:
            ConfigError: the role is not named and the team has no default.
        """
        return self._policies[policy_id_of(self._roles, role)]


def _check_policies(policies: Mapping[str, Policy]) -> None:
    if not policies:
        raise ConfigError("a team needs at least one policy, got none")
    for policy_id, policy in policies.items():
        if policy.policy_id != policy_id:
            raise ConfigError(
                f"policy {policy.policy_id!r} was given under the key {policy_id!r}; records would carry another id "
                "than the team knows: use the policy's own id as key"
            )


def _check_roles(policies: Mapping[str, Any], roles: Mapping[str, str]) -> None:
    if not roles:
        raise ConfigError(f"a team needs at least one role; map '{ANY_ROLE}' to share one policy among all")
    for role, policy_id in roles.items():
        if policy_id not in policies:
            hint = near_miss(policy_id, policies)
            raise ConfigError(f"role {role!r} is mapped to policy {policy_id!r}, which is not defined{hint}")


def _load_policy(policy_id: str, spec: str | Path | Mapping[str, Any], bases: Bases) -> Policy:
    if not isinstance(spec, Mapping):
        return Policy.load(policy_id, spec, bases=bases)
    options = dict(spec)
    source = options.pop("source", None)
    if source is None:
        raise ConfigError(f"policy {policy_id!r} has no 'source': give a directory, a hub id or 'builtin:tiny-team'")
    known = set(Policy.load.__kwdefaults__ or {}) - {"bases"}
    for name in options:
        if name not in known:
            raise ConfigError(f"policy {policy_id!r} has no option {name!r}{near_miss(name, known)}")
    return Policy.load(policy_id, source, bases=bases, **options)
