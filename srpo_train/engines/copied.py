"""Sampling in process from a copy of a policy, so that the trainer may change its own model meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import Tensor

from srpo_train.engines.publishing import PushReport, WeightSpecs, weights_of
from srpo_train.engines.transformers import TransformersEngine
from srpo_train.policies.policy import Policy


class CopiedEngine(TransformersEngine):
    """A `TransformersEngine` whose policy nobody else uses: new weights are copied into it between two calls.

    Args:
        policy: The copy, a `Policy` loaded for the purpose; it takes as much memory as the trainer's.
        max_batch_tokens: As that of `TransformersEngine`.
    """

    def __init__(self, policy: Policy, *, max_batch_tokens: int = 65_536) -> None:
        super().__init__(policy, max_batch_tokens=max_batch_tokens)
        self._specs = WeightSpecs(policy.policy_id, weights_of(policy))

    @property
    def published_version(self) -> int:
        """Version of the weights that sample now."""
        return self._policy.version

    @torch.no_grad()
    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> PushReport:
        """Replace the weights; nothing may be under way.

        Raises:
            EngineError: the weights do not fit; nothing has moved.
        """
        begun = time.monotonic()
        checked = self._specs.check(version, weights)
        for name, own in weights_of(self._policy):
            own.copy_(checked[name])
        self._policy.version = version
        return PushReport(seconds=time.monotonic() - begun, num_bytes=self._specs.num_bytes)

    def release_memory(self) -> None:
        """Do nothing: it samples during updates too."""
