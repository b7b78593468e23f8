"""From stored episodes to what the learner needs: whole events as rows of tokens, with one advantage each.

The order matters and is fixed: drop incomplete events, drop over-long ones with all their rows, and only then compare
returns, so that nothing which is not trained on moves a baseline.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode, Event, MemberRecord
from srpo_train.batching import EventBatch, MemberRow, drop_overlong
from srpo_train.objective.advantage import CreditTable, estimate_advantage
from srpo_train.objective.spec import Objective


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Complete events ready for an update.

    Example:
        ``Experience(batch=batch, dropped={"incomplete": 1}``
    """

    batch: EventBatch
    """The events with their advantages."""
    dropped: Mapping[str, int]
    """Number of events left out, by reason: ``incomplete`` and ``overlong``."""


def build_experience(episodes: Sequence[Episode], objective: Objective, max_row_tokens: int) -> Experience:
    """Turn finished episodes into an event batch with advantages.

    Args:
        episodes: Finished episodes; their events carry team returns.
        objective: Names the advantage estimator and its group key.
        max_row_tokens: An event with a longer row (prompt and response) is left out whole.

    Raises:
        ConfigError: a policy answered whose engine shows no tokens.
    """
    pairs = [(episode, step) for episode in episodes for step in range(len(episode.events))]
    complete = [(episode, step) for episode, step in pairs if _is_trainable(episode.events[step])]
    dropped = {"incomplete": len(pairs) - len(complete)}
    batch = _event_batch([episode.events[step] for episode, step in complete])
    table = _credit_table(complete)
    kept, report = drop_overlong(batch, max_row_tokens)
    dropped["overlong"] = len(report.dropped)
    advantage = estimate_advantage(table.select(torch.tensor(report.kept, dtype=torch.int64)), objective.advantage)
    event_of_row_M = kept.event_of_row_M
    advantage_E = advantage.on_events(event_of_row_M, kept.num_events)
    kept = replace(kept, advantage_E=advantage_E, advantage_M=advantage.on_rows(event_of_row_M))
    return Experience(batch=kept, dropped=dropped)


def _is_trainable(event: Event) -> bool:
    """Whether the event is complete and every member was sampled by a policy, not by a person or a script.

    Raises:
        ConfigError: the text of a policy came without its tokens.
    """
    for member in event.members:
        if member.policy_id and member.text and not (member.prompt_token_ids or member.token_ids):
            raise ConfigError(
                f"event {event.event_id!r}: policy {member.policy_id!r} answered member_index {member.member_index} "
                "without token ids, so there is nothing to train on; an engine that knows texts only, such as 'openai' "
                "or an agent of your own, is for evaluation"
            )
    return event.is_complete and event.team_return is not None and all(m.prompt_token_ids for m in event.members)


def _event_batch(events: Sequence[Event]) -> EventBatch:
    rows = [_row(index, member) for index, event in enumerate(events) for member in event.members]
    return EventBatch(
        rows=rows,
        cardinality_E=torch.tensor([event.cardinality for event in events], dtype=torch.int64),
        event_ids=[event.event_id for event in events],
    )


def _row(event_index: int, member: MemberRecord) -> MemberRow:
    return MemberRow(
        event_index=event_index,
        member_index=member.member_index,
        policy_id=member.policy_id,
        prompt_ids=member.prompt_token_ids,
        token_ids=member.token_ids,
        old_logprobs=member.behavior_logprobs,
        token_mask=tuple(bool(flag) for flag in member.token_mask),
        role=member.role,
    )


def _credit_table(pairs: Sequence[tuple[Episode, int]]) -> CreditTable:
    """The columns every estimator may group by; ids become integers."""
    events = [episode.events[step] for episode, step in pairs]
    members = [(index, member) for index, event in enumerate(events) for member in event.members]
    return CreditTable(
        return_E=torch.tensor([event.team_return for event in events], dtype=torch.float64),
        group_E=_codes(event.group_id for event in events),
        event_of_row_M=torch.tensor([index for index, _ in members], dtype=torch.int64),
        event_type_E=_codes(event.event_type for event in events),
        turn_E=torch.tensor([event.turn for event in events], dtype=torch.int64),
        episode_E=_codes(episode.episode_id for episode, _ in pairs),
        step_E=torch.tensor([step for _, step in pairs], dtype=torch.int64),
        cardinality_E=torch.tensor([event.cardinality for event in events], dtype=torch.int64),
        agent_M=_codes(member.agent for _, member in members),
        return_M=torch.tensor([_row_score(*pairs[index], member) for index, member in members], dtype=torch.float64),
        reward_E=torch.tensor([event.reward for event in events], dtype=torch.float64),
    )


def _row_score(episode: Episode, step: int, member: MemberRecord) -> float:
    """Score of one row in row-wise baselines (Dr. MAS): the team reward, less the penalty of this row alone."""
    if member.is_valid:
        return episode.reward
    event = episode.events[step]
    return episode.reward - event.penalty / sum(not other.is_valid for other in event.members)


def _codes(values: Iterable[Hashable]) -> Tensor:
    """Number distinct values in order of first appearance: [N] int64."""
    codes: dict[Hashable, int] = {}
    return torch.tensor([codes.setdefault(value, len(codes)) for value in values], dtype=torch.int64)
