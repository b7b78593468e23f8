"""The numbers of an update, role by role: tokens, entropy, advantage, ratio."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from srpo_train.batching import EventBatch, MemberRow
from srpo_train.objective import LossTensors
from srpo_train.objective.logratio import member_log_ratio
from srpo_train.objective.surrogate import ratio_of


def rows_by_role(rows: Sequence[MemberRow]) -> dict[str, list[int]]:
    """Return the row indices of each role, roles in alphabetical order; rows that name no role are left out."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.role:
            found[row.role].append(index)
    return dict(sorted(found.items()))


def describe_batch(batch: EventBatch) -> dict[str, float]:
    """Measure what each role brings to an update, before it.

    Returns:
        ``token_share/{role}``: its share of the sampled tokens.
        ``entropy/{role}``, in nats: mean of -log q over its sampled tokens, an unbiased estimate of the behavior
        policy's entropy there.
        ``perplexity/{role}``: its exponential, the number of tokens the policy hesitates between.
        ``advantage_std/{role}``: population standard deviation of its rows' advantages; 0 teaches it nothing.
    """
    num_tokens = sum(_num_sampled(row) for row in batch.rows)
    report: dict[str, float] = {}
    for role, indices in rows_by_role(batch.rows).items():
        rows = [batch.rows[index] for index in indices]
        report[f"token_share/{role}"] = sum(map(_num_sampled, rows)) / max(1, num_tokens)
        surprises = [-logprob for row in rows for logprob in _sampled_logprobs(row)]
        if surprises:
            entropy = sum(surprises) / len(surprises)
            report |= {f"entropy/{role}": entropy, f"perplexity/{role}": _exp(entropy)}
        if batch.advantage_E is not None:
            report[f"advantage_std/{role}"] = float(_row_advantage(batch)[indices].std(correction=0))
    return report


@torch.no_grad()
def describe_ratios(batch: EventBatch, tensors: LossTensors) -> dict[str, float]:
    """Measure the ratio of each role's responses (eq. 3) at the weights of an update.

    Returns:
        ``ratio_mean/{role}`` and ``log_ratio_std/{role}``, over whole responses whatever the objective's unit is.
    """
    log_ratio_M = member_log_ratio(tensors.current_MT, tensors.old_MT, tensors.token_mask_MT).double()
    report: dict[str, float] = {}
    for role, indices in rows_by_role(batch.rows).items():
        log_ratio = log_ratio_M[indices]
        report[f"ratio_mean/{role}"] = float(ratio_of(log_ratio).mean())
        report[f"log_ratio_std/{role}"] = float(log_ratio.std(correction=0))
    return report


def _row_advantage(batch: EventBatch) -> Tensor:
    assert batch.advantage_E is not None
    return batch.advantage_E[batch.event_of_row_M] if batch.advantage_M is None else batch.advantage_M


def _num_sampled(row: MemberRow) -> int:
    return len(row.token_ids) if row.token_mask is None else sum(row.token_mask)


def _sampled_logprobs(row: MemberRow) -> list[float]:
    if row.old_logprobs is None:
        return []
    mask = row.token_mask or [True] * len(row.token_ids)
    return [logprob for logprob, is_sampled in zip(row.old_logprobs, mask, strict=True) if is_sampled]


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
