"""How the roles write: whether they can still be told apart, whose style they have, and how far each has drifted.

Role capture under a shared policy shows in the text before it shows in the score: an aggregator that used to write one
number writes a solution, as the solvers do. Mean entropy and divergence do not see it, for each response is likely
under the policy that wrote it. A unigram model of the sampled tokens does: multinomial naive Bayes with one class a
role (McCallum and Nigam, 1998), fitted on a handful of responses.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from srpo_envs.records import Episode

_LONGEST_SAMPLE = 256
"""Responses of a role that are looked at in a step."""

Counts = Mapping[int, int]
"""Token id to the times it occurs."""


def count_tokens(episodes: Sequence[Episode]) -> dict[str, list[Counter[int]]]:
    """Count the sampled tokens of each response, by role; roles whose engine shows no tokens have none.

    The first responses of each role are taken, so that the same episodes always give the same counts.
    """
    found: dict[str, list[Counter[int]]] = defaultdict(list)
    for episode in episodes:
        for event in episode.events:
            for member in event.members:
                if member.token_ids and len(found[member.role]) < _LONGEST_SAMPLE:
                    sampled = zip(member.token_ids, member.token_mask, strict=True)
                    found[member.role].append(Counter(token for token, is_sampled in sampled if is_sampled))
    return {role: responses for role, responses in sorted(found.items()) if responses}


class TokenModel:
    """Tells by its tokens which role wrote a response.

    Args:
        totals: Tokens of each role, summed over its responses.

    Example:
        >>> TokenModel({"solver": {1: 9, 2: 1}, "verifier": {1: 1, 3: 9}}).role_of({3: 2})
        'verifier'
    """

    def __init__(self, totals: Mapping[str, Counts]) -> None:
        self.totals = {role: Counter(dict(counts)) for role, counts in sorted(totals.items())}
        vocabulary = len(set().union(*self.totals.values()))
        # One observation is added to every known token, and one class stands for all tokens never seen.
        self._size = {role: counts.total() + vocabulary + 1 for role, counts in self.totals.items()}

    @classmethod
    def fit(cls, responses: Mapping[str, Iterable[Counts]]) -> TokenModel:
        """Sum the responses of each role."""
        totals: dict[str, Counter[int]] = {role: Counter() for role in responses}
        for role, written in responses.items():
            for counts in written:
                totals[role].update(counts)
        return cls(totals)

    def role_of(self, response: Counts) -> str:
        """Return the role under which the tokens are likeliest, all roles being equally likely before."""
        return max(self.totals, key=lambda role: self._log_likelihood(role, response))

    def recall(self, responses: Mapping[str, Sequence[Counts]]) -> dict[str, float]:
        """Return for each role the share of its responses that are taken for its own."""
        return {
            role: sum(self.role_of(counts) == role for counts in written) / len(written)
            for role, written in responses.items()
            if written and role in self.totals
        }

    def _log_likelihood(self, role: str, response: Counts) -> float:
        known, size = self.totals[role], self._size[role]
        return sum(times * math.log((known[token] + 1) / size) for token, times in response.items())


def separability(responses: Mapping[str, Sequence[Counts]]) -> dict[str, float]:
    """Return for each role the share of its responses that can be told from the other roles' of the same step.

    Each half of the responses is read by a model fitted on the other half. Empty with fewer than two roles, or with
    a role of a single response.
    """
    if len(responses) < 2 or any(len(written) < 2 for written in responses.values()):
        return {}
    halves = [{role: written[start::2] for role, written in responses.items()} for start in (0, 1)]
    recalls = [TokenModel.fit(other).recall(half) for half, other in zip(halves, reversed(halves), strict=True)]
    weights = [{role: len(written) for role, written in half.items()} for half in halves]
    return {
        role: sum(recall[role] * weight[role] for recall, weight in zip(recalls, weights, strict=True)) / len(written)
        for role, written in responses.items()
    }


def divergence(one: Counts, other: Counts) -> float:
    """Return the Jensen-Shannon divergence of two token distributions in bits: 0 when equal, 1 when disjoint."""
    sizes = sum(one.values()), sum(other.values())
    if not all(sizes):
        return 0.0
    total = 0.0
    for counts, size in zip((one, other), sizes, strict=True):
        for token, times in counts.items():
            share = times / size
            mean = (one.get(token, 0) / sizes[0] + other.get(token, 0) / sizes[1]) / 2
            total += share * math.log2(share / mean) / 2
    return min(1.0, max(0.0, total))


class RoleStyles:
    """Follows how the roles write from the first step of a run on.

    Example:
        ``RoleStyles().measure(episodes)`` at every step; the first call sets what later ones are compared with.
    """

    def __init__(self) -> None:
        self._first: TokenModel | None = None

    def measure(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return what the roles' tokens say in this step.

        Returns:
            ``rollout/role_recall/{role}``: share of its responses that can be told from the other roles' of this step.
            ``rollout/role_capture/{role}``: share that reads as another role's used to at the start of the run.
            ``rollout/role_drift/{role}``: divergence of its tokens from those of the start, in bits.
            The first two need two roles.
        """
        responses = count_tokens(episodes)
        if not responses:
            return {}
        if self._first is None:
            self._first = TokenModel.fit(responses)
        first, now = self._first, TokenModel.fit(responses)
        report = {f"rollout/role_recall/{role}": value for role, value in separability(responses).items()}
        if len(first.totals) > 1:
            recall = first.recall(responses)
            report |= {f"rollout/role_capture/{role}": 1.0 - value for role, value in recall.items()}
        drift = {
            role: divergence(first.totals[role], counts) for role, counts in now.totals.items() if role in first.totals
        }
        return report | {f"rollout/role_drift/{role}": value for role, value in drift.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"first": None if self._first is None else {r: dict(c) for r, c in self._first.totals.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        first = state["first"]
        self._first = None if first is None else TokenModel(first)
