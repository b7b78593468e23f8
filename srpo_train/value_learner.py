"""Training of a critic: the values of a batch before it is credited, then some optimiser steps towards its targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from srpo_train.batching import EventBatch, MemberRow, event_minibatches
from srpo_train.config import OptimConfig
from srpo_train.distributed.dealing import deal_work
from srpo_train.distributed.ranks import Ranks
from srpo_train.objective.value import explained_variance, share_clipped, value_loss
from srpo_train.optimizer import PolicyOptimizer, StepGuard, schedule_factor
from srpo_train.policies.critic import Critic
from srpo_train.set_gradient import Partition
from srpo_train.throughput.recorder import RECORDER


class ValueLearner:
    """Evaluates and optimises a critic.

    An event's value depends on all its members, which may not fit in one forward pass. As for the policies
    (`srpo_train.set_gradient`) the chain rule parts the two: all values without gradient, the loss's derivative in
    them, then back-propagation over any partition of the rows.

    Args:
        critic: The network.
        config: Its optimiser, and how a batch is cut.
        value_clip: Range of the clipped value loss.
        num_steps: Training steps in all, for the learning-rate schedule.
        ranks: The processes that train together, each of which is given the whole batch.
    """

    def __init__(
        self, critic: Critic, config: OptimConfig, *, value_clip: float, num_steps: int, ranks: Ranks | None = None
    ) -> None:
        self.critic = critic
        self._config = config
        self._value_clip = value_clip
        self._num_steps = num_steps
        self._ranks = ranks or Ranks()
        self._optimizer = PolicyOptimizer(critic.parameters, config)
        self._guard = StepGuard("critic", config.max_nonfinite_steps)

    @torch.no_grad()
    @RECORDER.phase("score")
    def values(self, batch: EventBatch) -> Tensor:
        """Return V(s_e) of every event, the mean over its members: [E] float64 on the CPU."""
        rows = _prompts(batch)
        value_E = torch.zeros(batch.num_events, dtype=torch.float64)
        share_M, event_of_row_M = _member_share(batch), batch.event_of_row_M
        for part in self._passes(rows, batch):
            value_P = self.critic([rows[index] for index in part]).double().cpu()
            value_E.index_add_(0, event_of_row_M[part], share_M[part] * value_P)
        return self._ranks.share(value_E)

    def update(self, batch: EventBatch, *, step: int, seed: int) -> dict[str, float]:
        """Train on a batch with values and targets, and return ``train/...`` metrics.

        Args:
            batch: Events with ``value_E``, as `values` gave them before the policies moved, and ``value_target_E``.
            step: Training step, from 0, for the learning rate.
            seed: Fixes how events are dealt into mini-batches.

        Raises:
            NonFiniteError: more optimiser steps in a row were not finite than the recipe allows.
        """
        value_E, target_E = _columns(batch)
        config = self._config
        rate = config.lr * schedule_factor(config, step, self._num_steps)
        parts = [
            part
            for epoch in range(config.num_epochs)
            for part in event_minibatches(batch, config.num_minibatches, seed + epoch)
        ]
        try:
            reports = [self._minibatch(part, rate, is_first=index == 0) for index, part in enumerate(parts)]
        finally:
            self._optimizer.zero_grad()  # a rollout has a use for their memory
        means = {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}
        return means | {
            "train/value_mean": float(value_E.mean()),
            "train/value_explained_variance": explained_variance(value_E, target_E),
            "train/value_lr": rate,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return optimiser state and counters, loadable with ``weights_only``."""
        return {"optimizer": self._optimizer.state_dict(), "guard": self._guard.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._guard.load_state_dict(state["guard"])

    def _minibatch(self, part: EventBatch, rate: float, *, is_first: bool) -> dict[str, float]:
        old_E, target_E = _columns(part)
        value_E = (old_E if is_first else self.values(part)).detach().requires_grad_()
        loss = value_loss(value_E, old_E, target_E, value_clip=self._value_clip)
        (slope_E,) = torch.autograd.grad(loss, value_E)
        self._optimizer.zero_grad()
        with RECORDER.phase("backward"):
            self._backpropagate(part, slope_E)
        with RECORDER.phase("optimizer"):
            self._optimizer.sum_gradients(self._ranks)
            norm = self._optimizer.clip()
            if self._guard.admits({"loss": loss.item(), "gradient norm": norm}):
                self._optimizer.step(rate)
        return {
            "train/value_loss": loss.item(),
            "train/value_clip_fraction": share_clipped(value_E.detach(), old_E, value_clip=self._value_clip),
            "train/value_grad_norm": norm,
        }

    def _backpropagate(self, part: EventBatch, slope_E: Tensor) -> None:
        """Back-propagate ``sum_e slope_e V(s_e)``; rows whose event has slope 0 move nothing and are left out."""
        rows, slope_M = _prompts(part), slope_E[part.event_of_row_M] * _member_share(part)
        for pass_rows in self._passes(rows, part):
            if active := [index for index in pass_rows if slope_M[index] != 0]:
                value_P = self.critic([rows[index] for index in active])
                torch.autograd.backward((value_P * slope_M[active].to(value_P)).sum())

    def _passes(self, rows: Sequence[MemberRow], batch: EventBatch) -> Partition:
        """This rank's forward passes over the prompts of a batch."""
        prompts = replace(batch, rows=rows, advantage_M=None)
        return deal_work(prompts, self._config.micro_batch_tokens, self._ranks).partition


def _prompts(batch: EventBatch) -> list[MemberRow]:
    """The rows without their responses: what was known before the members acted."""
    # The critic is one network, so rows of all policies may share a pass.
    return [
        MemberRow(
            event_index=row.event_index,
            member_index=row.member_index,
            policy_id="",
            prompt_ids=row.prompt_ids,
            token_ids=(),
        )
        for row in batch.rows
    ]


def _member_share(batch: EventBatch) -> Tensor:
    """Return [M] float64: a member's share in its event's value, 1 / K_e."""
    return 1.0 / batch.cardinality_E[batch.event_of_row_M].double()


def _columns(batch: EventBatch) -> tuple[Tensor, Tensor]:
    assert batch.value_E is not None and batch.value_target_E is not None
    return batch.value_E.double(), batch.value_target_E.double()
