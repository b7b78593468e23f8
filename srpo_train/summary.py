"""What a batch of episodes says about the team: rewards, validity, lengths, cardinality and cost (eq. 8)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from srpo_envs.records import Episode


def is_correct(episode: Episode) -> bool:
    """Whether the team solved its task: what the workflow says, else a full reward."""
    return bool(episode.info.get("correct", episode.reward >= 1.0))


def summarize(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Return metrics ``prefix/name`` of finished episodes.

    Names and units are listed in `srpo_train.metrics` and in ``docs/metrics.md``.
    """
    if not episodes:
        return {}
    events = [event for episode in episodes for event in episode.events]
    named = {
        "reward_mean": _mean([episode.reward for episode in episodes]),
        "team_return_mean": _mean([event.team_return or 0.0 for event in events]),
        "penalty_mean": _mean([episode.penalty for episode in episodes]),
        "accuracy": _mean([is_correct(episode) for episode in episodes]),
        "truncated_rate": _mean([episode.truncated for episode in episodes]),
        "cardinality_mean": _mean([event.cardinality for event in events]),
        "event_completeness": _mean([event.is_complete for event in events]),
        "num_episodes": len(episodes),
        "num_events": len(events),
        "num_tokens": sum(episode.num_tokens for episode in episodes),
        "num_calls": sum(episode.num_calls for episode in episodes),
        "num_tool_calls": sum(episode.num_tool_calls for episode in episodes),
    }
    return {f"{prefix}/{name}": float(value) for name, value in (named | _by_role(episodes)).items()}


def _by_role(episodes: Sequence[Episode]) -> dict[str, float]:
    valid: dict[str, list[bool]] = defaultdict(list)
    length: dict[str, list[int]] = defaultdict(list)
    for episode in episodes:
        for event in episode.events:
            for member in event.members:
                valid[member.role].append(member.is_valid)
                length[member.role].append(len(member.token_ids))
    return {
        **{f"valid_rate/{role}": _mean(flags) for role, flags in sorted(valid.items())},
        **{f"response_length/{role}": _mean(counts) for role, counts in sorted(length.items())},
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
