"""What a batch of episodes says about the team: rewards, validity, lengths, cardinality and cost (eq. 8).

Names and units are those of `srpo_train.metrics.TABLE`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from srpo_envs.records import Episode, MemberRecord
from srpo_train.costs import summarize_costs, without_clocks


def is_correct(episode: Episode) -> bool:
    """Whether the team solved its task: what the workflow says, else a full reward."""
    return bool(episode.info.get("correct", episode.reward >= 1.0))


def summarize(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Return the metrics that rollouts and evaluations share, as ``prefix/name``."""
    by_role = _members_by_role(episodes)
    values = {
        "accuracy": _mean([is_correct(episode) for episode in episodes]),
        "reward_mean": _mean([episode.reward for episode in episodes]),
        **{f"valid_rate/{role}": _mean([m.is_valid for m in members]) for role, members in by_role.items()},
        **{f"response_length/{role}": _mean([sum(m.token_mask) for m in members]) for role, members in by_role.items()},
        "num_episodes": len(episodes),
        **without_clocks(summarize_costs(episodes)),
        **{f"env/{name}": _mean(found) for name, found in _env_metrics(episodes).items()},
    }
    return _named(values, prefix)


def summarize_rollout(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the ``rollout/...`` metrics of a training step: `summarize`, and what only training asks for."""
    events = [event for episode in episodes for event in episode.events]
    cardinality: dict[str, list[int]] = defaultdict(list)
    for event in events:
        cardinality[event.event_type].append(event.cardinality)
    by_role = _members_by_role(episodes)
    values = {
        "reward_std": _spread([episode.reward for episode in episodes]),
        "team_return_mean": _mean([event.team_return or 0.0 for event in events]),
        "penalty_mean": _mean([episode.penalty for episode in episodes]),
        "event_completeness": _mean([event.is_complete for event in events]),
        "num_truncated_episodes": sum(episode.truncated for episode in episodes),
        "num_events": len(events),
        "zero_variance_groups": _zero_variance_share(episodes),
        **{f"cardinality/{kind}": _mean(values) for kind, values in sorted(cardinality.items())},
        **{f"cut_rate/{role}": _mean([m.finish_reason == "length" for m in ms]) for role, ms in by_role.items()},
    }
    return summarize(episodes, "rollout") | _named(values, "rollout")


def _env_metrics(episodes: Sequence[Episode]) -> dict[str, list[float]]:
    """What the workflow itself measured, by name; an episode it says nothing of does not count."""
    found: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, value in episode.info.get("metrics", {}).items():
            found[name].append(value)
    return dict(sorted(found.items()))


def _zero_variance_share(episodes: Sequence[Episode]) -> float:
    groups: dict[str, set[float]] = defaultdict(set)
    for episode in episodes:
        groups[episode.group_id].add(episode.reward)
    return _mean([len(rewards) == 1 for rewards in groups.values()])


def _members_by_role(episodes: Sequence[Episode]) -> dict[str, list[MemberRecord]]:
    by_role: dict[str, list[MemberRecord]] = defaultdict(list)
    for episode in episodes:
        for event in episode.events:
            for member in event.members:
                by_role[member.role].append(member)
    return dict(sorted(by_role.items()))


def _named(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}


def _spread(values: Sequence[float]) -> float:
    """Population standard deviation; exactly 0 when all values are equal, which rounding alone would not give."""
    return statistics.pstdev(values) if len(set(values)) > 1 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
