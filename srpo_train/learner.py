"""The learner: one batch of events in, some optimiser steps out (algorithm 1, lines 18 to 26).

Differences from the paper: the paper does not say how gradients are clipped or how several policies share an optimiser.
Here each policy has an AdamW of its own, and its gradient is clipped by its own norm. A policy that is not trained has
none: its members count in ratios and means, and nothing flows into it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from srpo_train.batching import EventBatch, event_minibatches, join_batches
from srpo_train.config import OptimConfig
from srpo_train.diagnostics.gradients import measure_role_gradients
from srpo_train.diagnostics.roles import describe_batch
from srpo_train.distributed.dealing import Work, deal_work
from srpo_train.distributed.ranks import Ranks
from srpo_train.objective import Clip, LossTensors, Objective, engine_mismatch
from srpo_train.optimizer import PolicyOptimizer, StepGuard, schedule_factor
from srpo_train.policies.logprobs import ModelScorer
from srpo_train.policies.policy import Policy
from srpo_train.role_weights import weigh_roles
from srpo_train.set_gradient import (
    SetGradient,
    accumulate_set_gradient,
    event_clips,
    loss_coefficients,
    loss_tensors,
    with_logprobs,
)
from srpo_train.throughput.recorder import RECORDER

_GAP_SAMPLE = 8  # events


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """How one policy is trained.

    Example:
        ``PolicySettings(optim=OptimConfig(lr=1e-4), temperature=0.8)``
    """

    optim: OptimConfig
    """Its optimiser and schedule; how a batch is cut is read from the learner's own."""
    temperature: float = 1.0
    """Temperature its responses were sampled at; log-probabilities are taken at the same one."""
    clip: Clip | None = None
    """Bounds of the ratio in its events; None takes the objective's."""


class Learner:
    """Optimises every trainable policy of a team on the same objective.

    Args:
        policies: Policy id to policy.
        objective: What is maximised.
        config: Optimiser settings, and how a batch is cut.
        num_steps: Training steps in all, for the learning-rate schedule.
        temperature: Temperature the responses were sampled at; log-probabilities are taken at the same one.
        references: Frozen policies of the divergence penalty; needed when ``objective.kl_coef`` is positive.
        settings: Policies that are trained in another way, by id.
        ranks: The processes that train together. Each is given the whole batch and computes the rows of its events;
            reports and steps are the same on all.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        objective: Objective,
        config: OptimConfig,
        *,
        num_steps: int,
        temperature: float = 1.0,
        references: Mapping[str, Policy] | None = None,
        settings: Mapping[str, PolicySettings] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        common = PolicySettings(optim=config, temperature=temperature)
        self._settings = dict.fromkeys(policies, common) | dict(settings or {})
        self._objective = objective
        self._ranks = ranks or Ranks()
        self._shards = {policy_id: policy.shards for policy_id, policy in policies.items() if policy.shards}
        self._config = config
        self._num_steps = num_steps
        self._scorers = self._score_with(policies, with_entropy=objective.entropy_coef != 0)
        self._packed = {policy_id for policy_id, scorer in self._scorers.items() if scorer.packing}
        self._references = self._score_with(references or {}, with_entropy=False)
        self._clips = {policy_id: own.clip for policy_id, own in self._settings.items() if own.clip}
        self._optimizers = {
            policy_id: PolicyOptimizer(policy.trainable_parameters, self._settings[policy_id].optim)
            for policy_id, policy in policies.items()
            if policy.is_trainable
        }
        self._guard = StepGuard("policies", config.max_nonfinite_steps)
        self._rate_factor = 1.0

    def update(self, batch: EventBatch, *, step: int, seed: int, with_role_gradients: bool = False) -> dict[str, float]:
        """Train on a batch of complete events and return ``train/...`` metrics.

        Args:
            batch: Events with advantages; ``old_logprobs`` of the rows are the engine's, compared with the trainer's
                and, with a ``correction``, weighing each token by the difference.
            step: Training step, from 0, for the learning rate.
            seed: Fixes how events are dealt into mini-batches.
            with_role_gradients: Also measure, on the first mini-batch, which role the gradient comes from.

        Raises:
            NonFiniteError: more optimiser steps in a row were not finite than the recipe allows.
        """
        rates, num_skipped = self._rates(step), self._guard.num_skipped
        minibatches, watched = self._minibatches(batch, seed)
        metrics = self._batch_metrics(batch, watched, rates, step)
        try:
            if with_role_gradients:
                metrics |= {f"train/{name}": value for name, value in self._role_gradients(minibatches[0]).items()}
            reports = [self._minibatch(part, rates, on_policy=index == 0) for index, part in enumerate(minibatches)]
        finally:
            self._forget_gradients()  # as large as the weights in float32; a rollout has a use for that memory
        return metrics | self._update_metrics(reports, num_skipped)

    def update_in_parts(
        self, parts: Iterable[EventBatch], *, step: int, with_role_gradients: bool = False
    ) -> dict[str, float]:
        """Train on mini-batches as they come, and return ``train/...`` metrics; none without a mini-batch.

        The old log-probabilities of each are those of the policy as the one before has left it, for when the first is
        trained on the last may not have been sampled. A ``correction`` weighs for what the policy has moved since.

        Args:
            parts: Mini-batches with advantages; waited for with no gradient in memory.
            step: Training step, from 0, for the learning rate.
            with_role_gradients: Also measure, on the first mini-batch, which role the gradient comes from.

        Raises:
            NonFiniteError: more optimiser steps in a row were not finite than the recipe allows.
        """
        rates, num_skipped = self._rates(step), self._guard.num_skipped
        metrics: dict[str, float] = {}
        sampled: list[EventBatch] = []
        scored: list[EventBatch] = []
        reports: list[dict[str, float]] = []
        for part in parts:
            sampled.append(part)
            scored.append(self._with_trainer_logprobs(part))
            try:
                if with_role_gradients and not reports:
                    metrics |= {f"train/{name}": value for name, value in self._role_gradients(scored[0]).items()}
                reports.append(self._minibatch(scored[-1], rates, on_policy=True))
            finally:
                self._forget_gradients()
        if not scored:
            return {}
        metrics |= self._batch_metrics(join_batches(sampled), scored, rates, step)
        return metrics | self._update_metrics(reports, num_skipped)

    def _rates(self, step: int) -> dict[str, float]:
        return {policy_id: self._learning_rate(self._settings[policy_id].optim, step) for policy_id in self._optimizers}

    def _batch_metrics(
        self, batch: EventBatch, watched: Sequence[EventBatch], rates: Mapping[str, float], step: int
    ) -> dict[str, float]:
        """What can be said of a batch without an update: rates, tokens, and how far engine and trainer are apart."""
        metrics = {"train/lr": self._learning_rate(self._config, step)} | _token_metrics(batch)
        metrics |= {f"train/{name}": value for name, value in describe_batch(batch).items()}
        if len(set(rates.values())) > 1:
            metrics |= {f"train/lr/{policy_id}": rate for policy_id, rate in rates.items()}
        mismatch = engine_mismatch(self._objective, [self._tensors(part) for part in watched])
        return metrics | {f"train/{name}": value for name, value in mismatch.items()}

    def _update_metrics(self, reports: Sequence[Mapping[str, float]], num_skipped: int) -> dict[str, float]:
        num_nonfinite = float(self._guard.num_skipped - num_skipped)
        counts = {"train/num_nonfinite_steps": num_nonfinite, "train/num_updates": len(reports) - num_nonfinite}
        return counts | _merge(reports, self._config.num_epochs)

    def lower_rates(self, factor: float) -> None:
        """Multiply every learning rate from now on."""
        self._rate_factor *= factor

    def state_dict(self) -> dict[str, Any]:
        """Return optimiser states and counters, loadable with ``weights_only``; without those of `parts`."""
        whole = {name: optimizer for name, optimizer in self._optimizers.items() if name not in self._shards}
        return {
            "optimizers": {policy_id: optimizer.state_dict() for policy_id, optimizer in whole.items()},
            "guard": self._guard.state_dict(),
            "rate_factor": self._rate_factor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.load_optimizers(state)
        self._guard.load_state_dict(state["guard"])
        self._rate_factor = state["rate_factor"]

    def load_optimizers(self, state: Mapping[str, Any]) -> None:
        """Restore the optimisers alone: moments, and the weights behind half-precision parameters."""
        for policy_id, stored in state["optimizers"].items():
            self._optimizers[policy_id].load_state_dict(stored)

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return weights and moments of policies that are spread over the ranks, of which each has its part."""
        return {policy_id: item.parts(self._optimizers[policy_id].adamw) for policy_id, item in self._shards.items()}

    def load_shards(self, folder: Path) -> None:
        """Restore what was written of `parts`, in a folder of each policy, on however many ranks that was.

        Raises:
            CheckpointError: it cannot be read.
        """
        for policy_id, shards in self._shards.items():
            shards.load_shards(folder / policy_id, self._optimizers[policy_id].adamw)

    def _minibatches(self, batch: EventBatch, seed: int) -> tuple[list[EventBatch], list[EventBatch]]:
        """Deal the mini-batches of all epochs, with log-probabilities as far as they are read.

        Returns:
            The mini-batches, and the scored events that tell how far engine and trainer are apart.
        """
        config = self._config
        if config.num_epochs > 1 or self._objective.kl_coef or self._objective.correction != "none":
            scored = self._with_trainer_logprobs(batch)
            epochs = [event_minibatches(scored, config.num_minibatches, seed + n) for n in range(config.num_epochs)]
            return list(itertools.chain.from_iterable(epochs)), [scored]
        # The first mini-batch meets the policy that sampled it, so its old log-probabilities decide nothing. A few of
        # its events still watch over the engine where there is no other mini-batch.
        first, *others = event_minibatches(batch, config.num_minibatches, seed)
        watched = others or [first.select(range(min(first.num_events, _GAP_SAMPLE)))]
        scored_parts = [self._with_trainer_logprobs(part) for part in watched]
        return [first, *(scored_parts if others else [])], scored_parts

    def _tensors(self, scored: EventBatch) -> LossTensors:
        """The columns of scored events before any update, with the bounds of each event's ratio."""
        clip_E = event_clips(self._objective, scored, self._clips)
        return replace(loss_tensors(self._objective, scored, None), clip_E=clip_E)

    def _with_trainer_logprobs(self, batch: EventBatch) -> EventBatch:
        """Score with the trainer, and with a reference where it is needed; the engine's log-probabilities are kept."""
        max_tokens, work = self._config.micro_batch_tokens, self._work(batch)._asdict()
        rows = [replace(row, engine_logprobs=row.old_logprobs) for row in batch.rows]
        scored = with_logprobs(replace(batch, rows=rows), self._scorers, max_tokens=max_tokens, **work)
        if self._objective.kl_coef:
            scored = with_logprobs(scored, self._references, max_tokens=max_tokens, name="reference_logprobs", **work)
        return scored

    def _work(self, batch: EventBatch) -> Work:
        """This rank's forward passes over a mini-batch."""
        return deal_work(batch, self._config.micro_batch_tokens, self._ranks, self._shards, self._packed)

    def _role_gradients(self, first: EventBatch) -> dict[str, float]:
        """Measure the first mini-batch before its update, where every ratio is 1."""
        _, coefficients = loss_coefficients(self._objective, self._tensors(first))
        coefficients = weigh_roles(self._objective.role_weights, first.rows, coefficients)
        return measure_role_gradients(
            first, coefficients, self._scorers, self._optimizers, max_tokens=self._config.micro_batch_tokens
        )

    def _minibatch(self, batch: EventBatch, rates: Mapping[str, float], *, on_policy: bool) -> dict[str, float]:
        """One optimiser step of every policy that has rows in the mini-batch.

        Args:
            batch: The mini-batch.
            rates: Learning rate of each policy.
            on_policy: The old log-probabilities are those of the policy as it is now, so that every ratio is 1.
        """
        self._forget_gradients()
        gradient = accumulate_set_gradient(
            self._objective,
            batch,
            self._scorers,
            max_tokens=self._config.micro_batch_tokens,
            on_policy=on_policy,
            frozen=self._scorers.keys() - self._optimizers.keys(),
            clips=self._clips,
            **self._work(batch)._asdict(),
        )
        with RECORDER.phase("optimizer"):
            for optimizer in self._optimizers.values():
                optimizer.sum_gradients(self._ranks)
            norms = {policy_id: optimizer.clip() for policy_id, optimizer in self._optimizers.items()}
            self._step(gradient, norms, rates)
        report = gradient.diagnostics | {"loss": -gradient.value}
        report["grad_norm"] = math.sqrt(sum(norm**2 for norm in norms.values()))
        if len(norms) > 1:
            report |= {f"grad_norm/{policy_id}": norm for policy_id, norm in norms.items()}
        return report

    def _step(self, gradient: SetGradient, norms: Mapping[str, float], rates: Mapping[str, float]) -> None:
        """Step every policy that received a gradient, or none when anything is not finite."""
        measured = {"objective": gradient.value} | {f"gradient norm of {name}": norm for name, norm in norms.items()}
        if self._guard.admits(measured):
            for policy_id, optimizer in self._optimizers.items():
                # Parameters without a gradient are left alone, moments included: a policy without rows does not move.
                optimizer.step(rates[policy_id])

    def _forget_gradients(self) -> None:
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()

    def _learning_rate(self, config: OptimConfig, step: int) -> float:
        return config.lr * schedule_factor(config, step, self._num_steps) * self._rate_factor

    def _score_with(self, policies: Mapping[str, Policy], *, with_entropy: bool) -> dict[str, ModelScorer]:
        return {
            policy_id: policy.scorer(
                temperature=self._settings[policy_id].temperature,
                with_entropy=with_entropy,
                packing=self._config.packing,
            )
            for policy_id, policy in policies.items()
        }


def _token_metrics(batch: EventBatch) -> dict[str, float]:
    """Entropy of the behavior policy, estimated without bias from the sampled tokens: the mean of -log q."""
    logprobs = [value for row in batch.rows for value in row.old_logprobs or ()]
    return {"train/entropy": -sum(logprobs) / len(logprobs)} if logprobs else {}


# How the mini-batches of a step become one number. The rest are means: the step's typical update.
_FIRST = {"clip_fraction": "train/first_clip_fraction"}
_LAST = ("ratio_mean", "ratio_min", "ratio_max", "log_ratio_std", "effective_size", "approx_kl", "var_set_log_ratio")
_SUMS = ("num_events", "num_rows", "num_tokens", "num_zero_advantage_events")


def _merge(reports: Sequence[Mapping[str, float]], num_epochs: int) -> dict[str, float]:
    """One value of each diagnostic for the step, named as in `srpo_train.metrics.TABLE`."""
    merged = {metric: reports[0][name] for name, metric in _FIRST.items()}
    for name in sorted({name for report in reports for name in report}):
        values = [report[name] for report in reports if name in report]
        value = values[-1] if name.startswith(_LAST) else sum(values) / (num_epochs if name in _SUMS else len(values))
        merged[f"train/{_metric_name(name)}"] = value
    return merged


def _metric_name(name: str) -> str:
    """The table's spelling of a per-cardinality diagnostic."""
    return name.replace("var_set_log_ratio_cov/K=", "log_ratio_cov/k").replace(
        "var_set_log_ratio/K=", "log_ratio_var/k"
    )
