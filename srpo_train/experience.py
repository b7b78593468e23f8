"""From stored episodes to what the learner needs: whole events as rows of tokens, with one advantage each.

The order matters and is fixed: drop incomplete events, drop over-long ones with all their rows, and only then compare
returns, so that nothing which is not trained on moves a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError
from srpo_envs.records import Episode, Event, MemberRecord
from srpo_train.batching import EventBatch, MemberRow, drop_overlong
from srpo_train.objective.advantage import estimate_advantage
from srpo_train.objective.credit import CreditTable
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
    """Number of events left out, by reason: ``incomplete``, ``overlong`` and ``uniform``."""


def build_experience(
    episodes: Sequence[Episode],
    objective: Objective,
    max_row_tokens: int,
    values: Callable[[EventBatch], Tensor] | None = None,
) -> Experience:
    """Turn finished episodes into an event batch with advantages.

    Args:
        episodes: Finished episodes; their events carry team returns.
        objective: Names the advantage estimator and its group key.
        max_row_tokens: An event with a longer row (prompt and response) is left out whole.
        values: A critic: the [E] values of a batch's pre-action states. Needed by estimators that read them.

    Raises:
        ConfigError: a policy answered whose engine shows no tokens, or the advantages need a critic and there is none.
    """
    pairs = [(episode, step) for episode in episodes for step in range(len(episode.events))]
    complete = [(episode, step) for episode, step in pairs if _is_trainable(episode.events[step])]
    batch, report = drop_overlong(_event_batch([episode.events[step] for episode, step in complete]), max_row_tokens)
    table = _credit_table(complete).select(torch.tensor(report.kept, dtype=torch.int64))
    value_E = values(batch) if values and batch.num_events else None
    batch = _with_advantages(batch, replace(table, value_E=value_E), objective)
    kept = _without_uniform_groups(batch, table.group_E) if objective.drop_uniform else batch
    dropped = {
        "incomplete": len(pairs) - len(complete),
        "overlong": len(report.dropped),
        "uniform": batch.num_events - kept.num_events,
    }
    return Experience(batch=kept, dropped=dropped)


def _with_advantages(batch: EventBatch, table: CreditTable, objective: Objective) -> EventBatch:
    if not batch.num_events:
        return replace(batch, advantage_E=torch.zeros(0), advantage_M=torch.zeros(0))
    advantage, event_of_row_M = estimate_advantage(table, objective.advantage), batch.event_of_row_M
    return replace(
        batch,
        advantage_E=advantage.on_events(event_of_row_M, batch.num_events),
        advantage_M=advantage.on_rows(event_of_row_M),
        value_E=table.value_E,
        value_target_E=advantage.value_target_E,
    )


def _without_uniform_groups(batch: EventBatch, group_E: Tensor) -> EventBatch:
    """Leave out the events of rollout groups without a single advantage that is not 0 (DAPO)."""
    assert batch.advantage_M is not None
    informative_G = group_E[batch.event_of_row_M[batch.advantage_M != 0]].unique()
    kept = torch.isin(group_E, informative_G).nonzero().squeeze(1).tolist()
    return batch.select(kept) if len(kept) < batch.num_events else batch


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
        kept_token_ids=member.kept_token_ids or None,
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
        state_E=_codes(event.state_id for event in events),
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
