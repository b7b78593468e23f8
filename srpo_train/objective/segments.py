"""Sums, means and equality over groups of samples: N samples, G groups numbered from 0."""

from __future__ import annotations

import torch
from torch import Tensor

# Returns nearer than float32 can tell apart are equal: their spread is rounding, and dividing by it would be noise.
_RELATIVE_RESOLUTION = 4 * torch.finfo(torch.float32).eps


def segment_sum(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Return [G] sums."""
    return value_N.new_zeros(num_groups).index_add(0, group_N, value_N)


def segment_mean(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Return [G] means; 0 for an empty group."""
    size_G = torch.bincount(group_N, minlength=num_groups).clamp(min=1)
    return segment_sum(value_N, group_N, num_groups) / size_G


def is_constant(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Return [G]: whether the group's values cannot be told apart in float32."""
    high_G = value_N.new_zeros(num_groups).scatter_reduce(0, group_N, value_N, "amax", include_self=False)
    low_G = value_N.new_zeros(num_groups).scatter_reduce(0, group_N, value_N, "amin", include_self=False)
    return high_G - low_G <= _RELATIVE_RESOLUTION * torch.maximum(high_G.abs(), low_G.abs())
