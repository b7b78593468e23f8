"""The exact gradient of an objective over whole events, at any micro-batch size.

An event's surrogate depends on all its members at once, yet they may not fit in one forward pass, may live on different
ranks, or may belong to different models. The chain rule parts the two: (i) score every row without gradient, (ii) take
the derivative of the objective with respect to each log-probability, a small matrix, (iii) back-propagate the sum of
coefficient times log-probability over any partition of the rows. For the set ratio the coefficient of every token of a
member is ``A_e * rho_e * [not clipped] / (sqrt(K_e) * E)``. The result equals autograd through the whole objective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from srpo_envs.errors import ConfigError, ShapeError
from srpo_train.batching import EventBatch, MemberRow, micro_batches, pad_logprobs, pad_token_masks
from srpo_train.diagnostics.roles import describe_ratios
from srpo_train.objective import Clip, LossTensors, Objective, diagnose, objective_value
from srpo_train.policies.logprobs import TokenLogprobs
from srpo_train.role_weights import weigh_roles
from srpo_train.throughput.recorder import RECORDER

Scorer = Callable[[Sequence[MemberRow]], TokenLogprobs]
"""Scores rows of one policy, differentiably. Deterministic, for dropout would differ between steps (i) and (iii)."""

Partition = Sequence[Sequence[int]]
"""Row indices of each forward pass."""

StandIns = Sequence[int | None]
"""By forward pass, the row that is computed where the pass has none; None where such a pass is left out."""


class Coefficients(NamedTuple):
    """Derivatives of the objective with respect to what the policies score; [M, T] float64 on the CPU."""

    logprobs_MT: Tensor
    """dJ / d log q of each token."""
    entropy_MT: Tensor | None
    """dJ / d entropy of each token; None without an entropy bonus."""


@dataclass(frozen=True, kw_only=True)
class SetGradient:
    """What one accumulation did; the gradient itself is in the parameters' ``grad``.

    Example:
        ``SetGradient(value=0.12, diagnostics={"clip_fraction": 0.0, ...}, num_rows_trained=96)``
    """

    value: float
    """The objective J at the parameters before the step."""
    diagnostics: dict[str, float]
    """See `objective.diagnose`."""
    num_rows_trained: int
    """Rows back-propagated; the others had coefficient zero."""


def accumulate_set_gradient(
    objective: Objective,
    batch: EventBatch,
    policies: Mapping[str, Scorer],
    *,
    max_tokens: int,
    on_policy: bool = False,
    frozen: Collection[str] = (),
    clips: Mapping[str, Clip] | None = None,
    partition: Partition | None = None,
    stand_ins: StandIns | None = None,
    share: Callable[[Tensor], Tensor] | None = None,
) -> SetGradient:
    """Add the gradient of ``-J`` over one mini-batch of events to the policies' parameters.

    Args:
        objective: the choices.
        batch: a whole mini-batch of complete events with advantages and old log-probabilities.
        policies: policy id to scorer.
        max_tokens: padded tokens per forward pass, when no partition is given.
        on_policy: the parameters are those the old log-probabilities were computed with, so that every ratio is 1 and
            step (i) is free; the rows then need no old log-probabilities unless there is a divergence penalty or a
            correction. The reported value leaves out the entropy bonus, whose gradient is not affected.
        frozen: policies that get no gradient; their members count in ratios and means as all do.
        clips: bounds of the ratio of policies that do not have the objective's.
        partition: row indices of each pass, of one policy each; together every row once, or with ``share`` this rank's.
        stand_ins: by pass, a row of its policy where ranks make the pass together because the model's parameters are
            spread over them. A rank with nothing to do in it computes the stand-in, whose numbers go nowhere.
        share: sums an [M, T] matrix over ranks (each holds the whole batch's description). Gradients are then to be
            *summed* over ranks too: the coefficients already divide by the counts of the whole mini-batch.

    Returns:
        Value and diagnostics of the whole mini-batch.

    Raises:
        IncompleteEventError: an event lacks a member.
        ShapeError: advantages or old log-probabilities are missing, or the partition loses or repeats a row.
        ConfigError: members of one event have policies with different clips.
    """
    partition = micro_batches(batch.rows, max_tokens) if partition is None else partition
    _check_partition(batch.rows, partition, is_local=share is not None)
    scores = None if on_policy else score_rows(batch.rows, policies, partition, stand_ins=stand_ins, share=share)
    tensors = replace(loss_tensors(objective, batch, scores), clip_E=event_clips(objective, batch, clips or {}))
    value, coefficients = loss_coefficients(objective, tensors)
    coefficients = weigh_roles(objective.role_weights, batch.rows, coefficients)
    num_rows_trained = backpropagate(batch.rows, policies, coefficients, partition, frozen, stand_ins)
    diagnostics = diagnose(objective, tensors) | describe_ratios(batch, tensors)
    return SetGradient(value=value, diagnostics=diagnostics, num_rows_trained=num_rows_trained)


@torch.no_grad()
@RECORDER.phase("score")
def score_rows(
    rows: Sequence[MemberRow],
    policies: Mapping[str, Scorer],
    partition: Partition,
    *,
    stand_ins: StandIns | None = None,
    share: Callable[[Tensor], Tensor] | None = None,
) -> TokenLogprobs:
    """Step (i): every row's log-probabilities, and entropies where all scorers give them, without gradient.

    Returns:
        [M, T] float64 matrices on the CPU, 0 on padding and on rows outside the partition (before ``share``).
    """
    shape = (len(rows), max((len(row.token_ids) for row in rows), default=0))
    logprobs_MT, entropy_MT = torch.zeros((2, *shape), dtype=torch.float64)
    has_entropy = True
    for part, stand_in in _passes(partition, stand_ins):
        if not part:
            if stand_in is not None:
                _score(rows, policies, [stand_in])
            continue
        with RECORDER.span("score pass", "pass", waits=True, rows=len(part)):
            scored = _score(rows, policies, part)
        width = scored.logprobs_MT.shape[1]
        logprobs_MT[list(part), :width] = scored.logprobs_MT.to(logprobs_MT)
        has_entropy = has_entropy and scored.entropy_MT is not None
        if scored.entropy_MT is not None:
            entropy_MT[list(part), :width] = scored.entropy_MT.to(entropy_MT)
    if share is not None:
        logprobs_MT, entropy_MT = share(logprobs_MT), share(entropy_MT)
    return TokenLogprobs(logprobs_MT, entropy_MT if has_entropy else None)


def with_logprobs(
    batch: EventBatch,
    policies: Mapping[str, Scorer],
    *,
    max_tokens: int,
    name: Literal["old_logprobs", "reference_logprobs"] = "old_logprobs",
    partition: Partition | None = None,
    stand_ins: StandIns | None = None,
    share: Callable[[Tensor], Tensor] | None = None,
) -> EventBatch:
    """Score every row and store the result on it: old log-probabilities before the first update, or a reference's.

    The engine's own log-probabilities are not used for the ratio: summed over thousands of tokens, small differences
    between engine and trainer would pass for a policy change. Partition, stand-ins and share are those of
    `accumulate_set_gradient`.
    """
    partition = micro_batches(batch.rows, max_tokens) if partition is None else partition
    scores = score_rows(batch.rows, policies, partition, stand_ins=stand_ins, share=share).logprobs_MT
    lists = [scores[index, : len(row.token_ids)].tolist() for index, row in enumerate(batch.rows)]
    rows = [_with_field(row, name, values) for row, values in zip(batch.rows, lists, strict=True)]
    return replace(batch, rows=rows)


def _with_field(row: MemberRow, name: str, values: list[float]) -> MemberRow:
    return replace(row, old_logprobs=values) if name == "old_logprobs" else replace(row, reference_logprobs=values)


def loss_tensors(objective: Objective, batch: EventBatch, scores: TokenLogprobs | None) -> LossTensors:
    """Gather a batch's columns for the objective; without scores the current policy is the behavior policy.

    Raises:
        ShapeError: a column the objective needs is missing.
    """
    if batch.advantage_E is None:
        raise ShapeError("event batch: no advantage_E; estimate advantages before the update")
    mask_MT = pad_token_masks(batch.rows)
    is_corrected = objective.correction != "none"
    reads_old = scores is not None or objective.kl_coef or is_corrected
    may_skip_old = not reads_old and any(row.old_logprobs is None for row in batch.rows)
    has_engine = is_corrected or all(row.engine_logprobs is not None for row in batch.rows)
    zero_MT = torch.zeros(mask_MT.shape, dtype=torch.float64)
    old_MT = zero_MT if may_skip_old else pad_logprobs(batch.rows, "old_logprobs", torch.float64)
    entropy_MT = zero_MT if scores is None else scores.entropy_MT
    return LossTensors(
        current_MT=old_MT if scores is None else scores.logprobs_MT,
        old_MT=old_MT,
        token_mask_MT=mask_MT,
        event_of_row_M=batch.event_of_row_M,
        cardinality_E=batch.cardinality_E,
        advantage_E=batch.advantage_E.double(),
        advantage_M=None if batch.advantage_M is None else batch.advantage_M.double(),
        reference_MT=pad_logprobs(batch.rows, "reference_logprobs", torch.float64) if objective.kl_coef else None,
        entropy_MT=entropy_MT if objective.entropy_coef else None,
        engine_MT=pad_logprobs(batch.rows, "engine_logprobs", torch.float64) if has_engine else None,
        event_ids=batch.event_ids,
    )


def event_clips(objective: Objective, batch: EventBatch, clips: Mapping[str, Clip]) -> Clip | None:
    """Return the [E] bounds of each event's ratio; None where all have the objective's.

    An event has one ratio, so one clip: policies with different ones cannot act in one event.

    Raises:
        ConfigError: they do.
    """
    default = Clip.of(objective)
    if not set(clips.values()) - {default}:
        return None
    found: dict[int, dict[Clip, str]] = defaultdict(dict)
    for row in batch.rows:
        found[row.event_index].setdefault(clips.get(row.policy_id, default), row.policy_id)
    for event, by_clip in found.items():
        if len(by_clip) > 1:
            name = batch.event_ids[event] if batch.event_ids else event
            raise ConfigError(
                f"event {name!r}: its members' policies {sorted(by_clip.values())} have different clips, but an event "
                "has one ratio and one clip; give policies that act together the same clip_low, clip_high, dual_clip"
            )
    return Clip.stack([next(iter(found[event])) for event in range(batch.num_events)])


def loss_coefficients(objective: Objective, tensors: LossTensors) -> tuple[float, Coefficients]:
    """Step (ii): value of the objective, and its derivative with respect to every log-probability and entropy."""
    with torch.enable_grad():
        logprobs_MT = tensors.current_MT.detach().requires_grad_()
        entropy_MT = None if tensors.entropy_MT is None else tensors.entropy_MT.detach().requires_grad_()
        leaves = [leaf for leaf in (logprobs_MT, entropy_MT) if leaf is not None]
        value = objective_value(objective, replace(tensors, current_MT=logprobs_MT, entropy_MT=entropy_MT))
        gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    return value.item(), Coefficients(gradients[0], gradients[1] if entropy_MT is not None else None)


@RECORDER.phase("backward")
def backpropagate(
    rows: Sequence[MemberRow],
    policies: Mapping[str, Scorer],
    coefficients: Coefficients,
    partition: Partition,
    frozen: Collection[str] = (),
    stand_ins: StandIns | None = None,
) -> int:
    """Step (iii): back-propagate ``-sum(coefficient * log-prob)`` pass by pass; rows with only zeros are left out.

    Rows whose event was clipped or has advantage zero, or whose policy is frozen, move nothing, so their forward pass
    is saved. A pass that ranks make together is left out where all ranks leave it out: no row of its policy moves.

    Returns:
        Number of rows that were back-propagated.
    """
    is_active_M = _is_active(coefficients).tolist()
    moving = {row.policy_id for row, is_active in zip(rows, is_active_M, strict=True) if is_active} - set(frozen)
    num_rows = 0
    for part, stand_in in _passes(partition, stand_ins):
        active = [index for index in part if is_active_M[index] and rows[index].policy_id not in frozen]
        if active:
            with RECORDER.span("backward pass", "pass", waits=True, rows=len(active)):
                torch.autograd.backward(_weighted_sum(_score(rows, policies, active), coefficients, active).neg())
            num_rows += len(active)
        elif stand_in is not None and rows[stand_in].policy_id in moving:
            torch.autograd.backward(0.0 * _score(rows, policies, [stand_in]).logprobs_MT.sum())
    return num_rows


def _passes(partition: Partition, stand_ins: StandIns | None) -> Iterator[tuple[Sequence[int], int | None]]:
    return zip(partition, stand_ins or [None] * len(partition), strict=True)


def _is_active(coefficients: Coefficients) -> Tensor:
    """Return [M] bool: some coefficient of the row is not zero (NaN counts, it must not be hidden)."""
    is_active_M = (coefficients.logprobs_MT != 0).any(dim=1)
    if coefficients.entropy_MT is not None:
        is_active_M |= (coefficients.entropy_MT != 0).any(dim=1)
    return is_active_M


def _weighted_sum(scored: TokenLogprobs, coefficients: Coefficients, rows: Sequence[int]) -> Tensor:
    width = scored.logprobs_MT.shape[1]
    total = (scored.logprobs_MT * coefficients.logprobs_MT[list(rows), :width].to(scored.logprobs_MT)).sum()
    if coefficients.entropy_MT is None:
        return total
    if scored.entropy_MT is None:
        raise ConfigError("entropy_coef is not zero but a policy's scorer gives no entropy; make it with entropy")
    return total + (scored.entropy_MT * coefficients.entropy_MT[list(rows), :width].to(scored.entropy_MT)).sum()


def _score(rows: Sequence[MemberRow], policies: Mapping[str, Scorer], part: Sequence[int]) -> TokenLogprobs:
    chosen = [rows[index] for index in part]
    ids = {row.policy_id for row in chosen}
    if len(ids) != 1:
        raise ShapeError(f"a forward pass holds rows of policies {sorted(ids)}; expected one, split the partition")
    (policy_id,) = ids
    if policy_id not in policies:
        raise ConfigError(f"no scorer for policy {policy_id!r}; known: {sorted(policies)}")
    return policies[policy_id](chosen)


def _check_partition(rows: Sequence[MemberRow], partition: Partition, *, is_local: bool) -> None:
    """Reject a partition that repeats a row, or loses one where no other rank can hold it."""
    indices = sorted(index for part in partition for index in part)
    is_right = len(set(indices)) == len(indices) if is_local else indices == list(range(len(rows)))
    if not is_right:
        raise ShapeError(f"partition: expected each of {len(rows)} rows once, got {len(indices)} row indices")
