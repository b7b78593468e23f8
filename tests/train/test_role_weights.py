"""Weights on roles: what they do to coefficients, and that the objective's value stays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from srpo_train.batching import MemberRow
from srpo_train.objective.spec import RoleWeights
from srpo_train.role_weights import weigh_roles
from srpo_train.set_gradient import Coefficients


def row(event: int, member: int, role: str, policy_id: str = "p") -> MemberRow:
    return MemberRow(
        event_index=event, member_index=member, policy_id=policy_id, prompt_ids=[1], token_ids=[5, 6], role=role
    )


def weigh(kind: RoleWeights, rows: list[MemberRow], values: list[list[float]]) -> list[list[float]]:
    matrix = torch.tensor(values, dtype=torch.float64)
    found = weigh_roles(kind, rows, Coefficients(matrix, matrix.clone()))
    assert found.entropy_MT is not None
    assert found.entropy_MT.tolist() == found.logprobs_MT.tolist()
    return found.logprobs_MT.tolist()


VOTERS = [row(0, 0, "voter"), row(0, 1, "voter"), row(1, 0, "judge")]


def test_multiplicity_divides_by_the_members_of_a_role_in_the_event() -> None:
    assert weigh("multiplicity", VOTERS, [[4.0, 2.0], [2.0, 2.0], [6.0, 0.0]]) == [[2.0, 1.0], [1.0, 1.0], [6.0, 0.0]]


def test_members_with_policies_of_their_own_are_one_each() -> None:
    rows = [row(0, 0, "voter", "p"), row(0, 1, "voter", "q")]
    assert weigh("multiplicity", rows, [[4.0, 2.0], [2.0, 2.0]]) == [[4.0, 2.0], [2.0, 2.0]]


def test_balance_gives_the_roles_of_a_policy_one_mass() -> None:
    # Voters have mass 4 + 2 + 2 + 0 = 8, the judge 2: each gets 5, so voters are scaled by 5/8 and the judge by 5/2.
    found = weigh("balanced", VOTERS, [[4.0, -2.0], [2.0, 0.0], [-2.0, 0.0]])
    assert found == [[2.5, -1.25], [1.25, 0.0], [-5.0, 0.0]]


def test_none_changes_nothing() -> None:
    coefficients = Coefficients(torch.ones(3, 2), None)
    assert weigh_roles("none", VOTERS, coefficients) is coefficients


@example([("a", "p", 4.0), ("b", "p", 1.1125369292536007e-308)])
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("pq"), st.floats(-10, 10)), min_size=1, max_size=12))
def test_balance_keeps_each_policy_s_mass_and_every_sign(given_rows: list[tuple[str, str, float]]) -> None:
    rows = [row(index, 0, role, policy_id) for index, (role, policy_id, _) in enumerate(given_rows)]
    before = torch.tensor([[value] for _, _, value in given_rows], dtype=torch.float64)
    after = weigh_roles("balanced", rows, Coefficients(before, None)).logprobs_MT
    assert torch.equal(after.sign(), before.sign())
    for policy_id in {item.policy_id for item in rows}:
        own = [index for index, item in enumerate(rows) if item.policy_id == policy_id]
        assert float(after[own].abs().sum()) == pytest.approx(float(before[own].abs().sum()))
