"""What one episode may cost, enforced while it runs: the matched-cost protocol (SRPO section 5.6).

Two methods compare fairly when neither may spend more than the other. A budget is an argument of the environment, so
training, evaluation and both standard views meet the same limits, and a stored episode replays under its own::

    env = srpo_envs.make("ArithmeticSolverVerifier-v0", budget={"team_tokens": 96, "calls": 8})
    [member.max_new_tokens for member in env.reset(seed=0).members]     # [32, 32, 32]

The members of a set share what is left: each may sample ``min(limit of its role, tokens left // K)`` tokens, so that K
members together stay within it and a larger set cannot win by generating more. What there is no room for is refused
where the schedule asks for it, with a `BudgetExhaustedError`. A schedule may catch it once and end otherwise, for
instance with an answer from what it has; where it does not, the episode is truncated with team reward 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srpo_envs.errors import BudgetExhaustedError, BudgetOverrunError, ConfigError, TokenCountError, near_miss
from srpo_envs.records import ActiveSet, Episode, Member, MemberOutput

CountTokens = Callable[[str], int]
"""Says how many tokens a text has, for outputs that do not say it themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What an episode has spent so far (eq. 8, and its turns).

    Example:
        ``Usage(team_tokens=40, calls=3, turns=1)``
    """

    team_tokens: int = 0
    """C_tok: sampled tokens of all members of all events."""
    calls: int = 0
    """C_call: policy calls, the sum of cardinalities."""
    turns: int = 0
    """Turns that have begun."""
    tool_calls: int = 0
    """C_tool: tool calls, grading not counted."""

    @classmethod
    def of(cls, episode: Episode) -> Usage:
        """Return what a recorded episode has spent."""
        return cls(
            team_tokens=episode.num_tokens,
            calls=episode.num_calls,
            turns=episode.num_turns,
            tool_calls=episode.num_tool_calls,
        )

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in LIMITS})


LIMITS = tuple(field.name for field in dataclasses.fields(Usage))
"""Names of what a budget may limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Most that one episode may spend; None is no limit.

    Example:
        ``Budget(team_tokens=512, tool_calls=4)``

    Raises:
        ConfigError: a limit is not a whole number of at least 0.
    """

    team_tokens: int | None = None
    """Sampled tokens of all members of all events."""
    calls: int | None = None
    """Policy calls, the sum of cardinalities."""
    turns: int | None = None
    """Turns, as the workflow counts them with `SetEnv.begin_turn`."""
    tool_calls: int | None = None
    """Tool calls."""

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
                raise ConfigError(f"budget: {name} must be a whole number of at least 0, got {limit!r}")

    @classmethod
    def of(cls, value: Budget | Mapping[str, Any] | None) -> Budget:
        """Return a budget from its limits by name, as recipes and stored episodes hold them.

        Raises:
            ConfigError: an unknown name, or a limit that leaves no room for any event.
        """
        if value is not None and not isinstance(value, (Budget, Mapping)):
            raise ConfigError(f"budget: expected limits by name, such as {{'team_tokens': 512}}, got {value!r}")
        limits = value.limits if isinstance(value, Budget) else value or {}
        for name, limit in limits.items():
            if name not in LIMITS:
                raise ConfigError(f"budget: no limit {name!r}{near_miss(str(name), LIMITS)}")
            if limit == 0 and name != "tool_calls":
                raise ConfigError(f"budget: {name} = 0 leaves no room for any event; only tool_calls may be 0")
        return cls(**limits)

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set, by name."""
        return {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}

    def minus(self, used: Usage) -> Budget:
        """Return what is left after `used`, at least 0 of each."""
        return Budget(**{name: max(limit - getattr(used, name), 0) for name, limit in self.limits.items()})

    def exceeded_by(self, used: Usage) -> list[str]:
        """Return the names of the limits that `used` is beyond."""
        return [name for name, limit in self.limits.items() if getattr(used, name) > limit]

    def share(self, cardinality: int) -> int | None:
        """Return how many of these tokens each of K members may sample, so that together they stay within them."""
        return None if self.team_tokens is None else self.team_tokens // cardinality

    def require(self, **needed: int) -> None:
        """Check that this much is left, by name of the limit.

        Raises:
            BudgetExhaustedError: less is left; names the first such limit.
        """
        for name, amount in needed.items():
            left = self.limits.get(name, amount)
            if left < amount:
                raise BudgetExhaustedError(name, f"{amount} needed, {left} left")


def exhausted_limit(episode: Episode) -> str:
    """Return the name of the limit that ended an episode or kept its schedule from going on; empty where none did."""
    prefix, dot, limit = str(episode.info.get("stopped_by", "")).partition(".")
    return limit if prefix == "budget" and dot else ""


def charged(active: ActiveSet, outputs: Sequence[MemberOutput], count_tokens: CountTokens | None) -> list[MemberOutput]:
    """Return outputs that all say how many tokens they have and stay within their member's share.

    Args:
        active: The set they answer.
        outputs: One per member, in member order.
        count_tokens: Counts the tokens of outputs that are texts alone.

    Raises:
        TokenCountError: an output has no token count and nobody counts for it, or one that cannot be.
        BudgetOverrunError: an output is longer than its member was allowed.
    """
    return [_charged(active, *pair, count_tokens) for pair in zip(active.members, outputs, strict=True)]


def _charged(active: ActiveSet, member: Member, output: MemberOutput, count_tokens: CountTokens | None) -> MemberOutput:
    where = f"event {active.event_id!r}: the output of {member.agent!r}"
    if not output.token_mask:
        if count_tokens is None:
            raise TokenCountError(
                f"{where} does not say how many tokens it has (its token_mask is empty), which a budget of team_tokens "
                "needs; let the engine or agent count (an AgentReply has num_tokens), or set env.count_tokens"
            )
        output = dataclasses.replace(output, token_mask=(1,) * count_tokens(output.text))
    elif not set(output.token_mask) <= {0, 1} or (output.text and not any(output.token_mask)):
        raise TokenCountError(
            f"{where} has a token_mask that counts nothing: expected a 1 for each sampled token and a 0 for any other, "
            f"and at least one sampled token in a text, got {output.token_mask!r:.80}"
        )
    if (num_tokens := sum(output.token_mask)) > member.max_new_tokens:
        raise BudgetOverrunError(
            f"{where} has {num_tokens} tokens, its share of the budget allows {member.max_new_tokens}; "
            "sample at most member.max_new_tokens"
        )
    return output
