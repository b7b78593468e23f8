"""AdamW over float32 weights, whatever number format the model computes in; its schedule; and steps that are skipped.

A bfloat16 weight of 0.02 has neighbours 1e-4 away. A step of 1e-6 rounds back to where it was, so training such weights
in place changes next to nothing and reports no error. Half-precision parameters therefore have float32 masters here:
gradients are summed into the masters, the step is taken on them, and the model gets the rounded result. Float32
parameters are their own masters and cost nothing more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from srpo_envs.errors import NonFiniteError
from srpo_train.config import OptimConfig
from srpo_train.distributed.ranks import Ranks

logger = logging.getLogger(__name__)

_FULL = (torch.float32, torch.float64)


class PolicyOptimizer:
    """The optimiser of one policy.

    A half-precision parameter takes 16 bytes beside its own: master, gradient and two moments.

    Args:
        parameters: What is optimised; backward passes fill the gradients.
        config: Learning rate, moments, weight decay, and the norm gradients are clipped to.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimConfig) -> None:
        trainable = list(parameters)
        self._max_grad_norm = config.max_grad_norm
        self._pairs = [(p, p.detach().float()) for p in trainable if p.dtype not in _FULL]
        masters = {id(parameter): master for parameter, master in self._pairs}
        self._weights = [masters.get(id(parameter), parameter) for parameter in trainable]
        self._adamw = torch.optim.AdamW(
            self._weights,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            # torch's own choice for GPUs, "foreach", holds another 4 bytes a parameter while it steps.
            fused=all(weight.is_cuda for weight in self._weights),
        )
        for parameter, master in self._pairs:
            _redirect_gradient(parameter, master)

    @property
    def adamw(self) -> torch.optim.AdamW:
        """What steps; its parameters are the model's own where these are float32."""
        return self._adamw

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def gradients(self) -> list[Tensor]:
        """Return the gradients summed so far, one tensor for each weight that has one."""
        return [weight.grad for weight in self._weights if weight.grad is not None]

    def sum_gradients(self, ranks: Ranks) -> None:
        """Sum over ranks what each has; a weight that has a gradient on one of them has it on all afterwards.

        Gradients of parameters that are spread over the ranks are summed already, by the backward pass.
        """
        whole = [weight for weight in self._weights if not isinstance(weight, DTensor)]
        if ranks.size == 1 or not whole:
            return
        has_gradient = torch.tensor([float(weight.grad is not None) for weight in whole])
        moved = [weight for weight, count in zip(whole, ranks.share(has_gradient).tolist(), strict=True) if count]
        for weight in moved:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        ranks.sum_into([weight.grad for weight in moved if weight.grad is not None])

    def clip(self) -> float:
        """Scale the gradient down to the largest norm and return its norm before; 0 where nothing was trained."""
        trained = [weight for weight in self._weights if weight.grad is not None]
        if not trained:
            return 0.0
        norm = nn.utils.get_total_norm([weight.grad for weight in trained if weight.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        nn.utils.clip_grads_with_norm_(trained, self._max_grad_norm or math.inf, norm)
        return float(norm)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Take one step and give the model its new weights."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        for parameter, master in self._pairs:
            parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """Return moments and masters, loadable with ``weights_only``."""
        return {"adamw": self._adamw.state_dict(), "masters": [master for _, master in self._pairs]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, the model's half-precision weights included."""
        self._adamw.load_state_dict(state["adamw"])
        for (parameter, master), stored in zip(self._pairs, state["masters"], strict=True):
            master.copy_(stored)
            parameter.copy_(master)


class StepGuard:
    """Lets finite optimiser steps through, counts the others, and ends the run after too many of them in a row.

    Args:
        name: Whose steps, for messages.
        max_in_a_row: Steps in a row that may be skipped.
    """

    def __init__(self, name: str, max_in_a_row: int) -> None:
        self._name = name
        self._max_in_a_row = max_in_a_row
        self.num_skipped = 0
        self._num_in_a_row = 0

    def admits(self, values: Mapping[str, float]) -> bool:
        """Whether a step with these numbers may be taken.

        Raises:
            NonFiniteError: too many in a row were not finite.
        """
        if all(map(math.isfinite, values.values())):
            self._num_in_a_row = 0
            return True
        self.num_skipped += 1
        self._num_in_a_row += 1
        logger.warning("optimiser step of the %s skipped: %s", self._name, dict(values))
        if self._num_in_a_row > self._max_in_a_row:
            raise NonFiniteError(
                f"{self._num_in_a_row} optimiser steps in a row of the {self._name} were not finite (last "
                f"{dict(values)}); lower the learning rate, or resume from an earlier checkpoint"
            )
        return False

    def state_dict(self) -> dict[str, int]:
        """Return the counters."""
        return {"num_skipped": self.num_skipped, "num_in_a_row": self._num_in_a_row}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore what `state_dict` returned."""
        self.num_skipped = state["num_skipped"]
        self._num_in_a_row = state["num_in_a_row"]


def schedule_factor(config: OptimConfig, step: int, num_steps: int) -> float:
    """Factor on the learning rate at a step (from 0): linear warm-up, then constant, linear or cosine decay to 0."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    return 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


def _redirect_gradient(parameter: nn.Parameter, master: Tensor) -> None:
    """Add every gradient of a parameter to its master's: sums over micro-batches are then float32 too."""

    def move(source: Tensor) -> None:
        assert source.grad is not None
        gradient = source.grad.to(master.dtype)
        source.grad = None
        if master.grad is None:
            master.grad = gradient
        else:
            master.grad += gradient

    parameter.register_post_accumulate_grad_hook(move)
