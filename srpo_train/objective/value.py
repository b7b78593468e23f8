"""The loss of a critic: squared error towards lambda-returns, clipped around the values before the update (PPO)."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(value_E: Tensor, old_value_E: Tensor, target_E: Tensor, *, value_clip: float) -> Tensor:
    """Mean over events of ``max((V - T)^2, (V_old + clip(V - V_old, -c, c) - T)^2) / 2``.

    The larger of the two is taken, so that a value which has already moved by ``c`` towards its target moves no further
    in this batch. It is the loss of OpenAI's PPO code; the paper (arXiv:1707.06347) has the first square alone.

    Args:
        value_E: [E] values of the critic being updated.
        old_value_E: [E] its values before the batch's first update.
        target_E: [E] lambda-returns; no gradient flows into them.
        value_clip: c; infinity gives the plain squared error.

    Returns:
        Scalar.
    """
    target_E, old_value_E = target_E.detach(), old_value_E.detach()
    clipped_E = old_value_E + (value_E - old_value_E).clamp(-value_clip, value_clip)
    return 0.5 * torch.maximum((value_E - target_E).square(), (clipped_E - target_E).square()).mean()


def explained_variance(value_E: Tensor, target_E: Tensor) -> float:
    """Return ``1 - Var(T - V) / Var(T)``: 1 for a perfect critic, 0 for a constant one, and 0 where T is constant."""
    variance = float(target_E.var(correction=0))
    return 1.0 - float((target_E - value_E).var(correction=0)) / variance if variance > 1e-12 else 0.0


def share_clipped(value_E: Tensor, old_value_E: Tensor, *, value_clip: float) -> float:
    """Return the share of events whose value has moved by more than the clip."""
    return float(((value_E - old_value_E).abs() > value_clip).double().mean())
