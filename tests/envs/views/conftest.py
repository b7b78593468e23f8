"""A small team for the views: two solvers, a verifier, an aggregator; three events when the verifier approves."""

from __future__ import annotations

import pytest

from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier

APPROVE = "<verify>approve</verify>"


@pytest.fixture
def team() -> SolverVerifier:
    return SolverVerifier(Arithmetic(), variant="fixed", num_solvers=2, max_rounds=1)


@pytest.fixture
def routed_team() -> SolverVerifier:
    """Nobody drafts while the router's text is malformed, so two such texts truncate the episode."""
    return SolverVerifier(Arithmetic(), variant="routed", num_solvers=2, max_rounds=2)


@pytest.fixture
def script():
    """Texts of one episode by event: one malformed draft, an approval, the gold answer."""

    def texts(gold: str) -> list[dict[str, str]]:
        return [
            {"solver_0": f"\\boxed{{{gold}}}", "solver_1": "no box"},
            {"verifier_0": APPROVE},
            {"aggregator_0": f"\\boxed{{{gold}}}"},
        ]

    return texts
