"""Weights on the gradient of each role, against the two ways in which roles unbalance a policy.

Both are remedies of diagnosed failures (see `srpo_train.diagnostics`), not part of SRPO: they weigh the coefficients of
a mini-batch after the objective was differentiated, so that ratios, clips and the reported value stay what they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from srpo_train.batching import MemberRow
from srpo_train.objective.spec import RoleWeights

if TYPE_CHECKING:
    from srpo_train.set_gradient import Coefficients


def weigh_roles(kind: RoleWeights, rows: Sequence[MemberRow], coefficients: Coefficients) -> Coefficients:
    """Scale the coefficients of a mini-batch row by row.

    Args:
        kind: ``none`` changes nothing. ``multiplicity`` divides each row by the number of members of its role and
            policy in its event, so that a role of three moves its weights as a role of one does. ``balanced`` gives
            every role of a policy the same part of the policy's coefficient mass ``sum |dJ/d log q|``, the sum over
            its roles being what it was.
        rows: The mini-batch's member rows.
        coefficients: Theirs.
    """
    if kind == "none":
        return coefficients
    weight_M = _multiplicity(rows) if kind == "multiplicity" else _balance(rows, coefficients.logprobs_MT)
    entropy_MT = coefficients.entropy_MT
    return coefficients._replace(
        logprobs_MT=coefficients.logprobs_MT * weight_M[:, None],
        entropy_MT=None if entropy_MT is None else entropy_MT * weight_M[:, None],
    )


def _multiplicity(rows: Sequence[MemberRow]) -> Tensor:
    """Return [M] float64: one over the members of the row's role and policy in its event."""
    keys = [(row.event_index, row.role, row.policy_id) for row in rows]
    counts = Counter(keys)
    return torch.tensor([1.0 / counts[key] for key in keys], dtype=torch.float64)


def _balance(rows: Sequence[MemberRow], logprobs_MT: Tensor) -> Tensor:
    """Return [M] float64: what makes the mass of every role of a policy the mean of them; a role without mass has 1."""
    mass_M = logprobs_MT.abs().sum(dim=1)
    mass: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row, value in zip(rows, mass_M.tolist(), strict=True):
        mass[row.policy_id][row.role] += value
    weights = {policy_id: _equalize(by_role) for policy_id, by_role in mass.items()}
    return torch.tensor([weights[row.policy_id][row.role] for row in rows], dtype=torch.float64)


_NEGLIGIBLE = 1e-9
"""Share of the largest role's mass below which a role counts as without mass: what is noise is not made large."""


def _equalize(mass: dict[str, float]) -> dict[str, float]:
    least = _NEGLIGIBLE * max(mass.values())
    present = [value for value in mass.values() if value > least]
    mean = sum(present) / max(1, len(present))
    return {role: mean / value if value > least else 1.0 for role, value in mass.items()}
