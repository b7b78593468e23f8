"""The ids this package registers: every workflow with every family it makes sense for."""

from __future__ import annotations

from srpo_envs.registry import NAMESPACE, Pairing, register

FAMILIES = {
    "Arithmetic": "srpo_envs.tasks.arithmetic:Arithmetic",
    "Code": "srpo_envs.tasks.programs:Programs",
    "Math": "srpo_envs.tasks.math_problems:MathProblems",
    "QA": "srpo_envs.tasks.question_answering:QuestionAnswering",
    "TinyCode": "srpo_envs.tasks.tiny_code:TinyCode",
    "Village": "srpo_envs.tasks.village:Village",
}
"""Task families by the first part of a name."""

_ANSWERED = ("Arithmetic", "Code", "Math", "TinyCode")
"""Families whose questions are answered without a search; a name added here has every workflow over them."""

_SOLVER_VERIFIER = "srpo_envs.workflows.solver_verifier:SolverVerifier"
_SEARCH = "srpo_envs.workflows.search:Search"

WORKFLOWS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "SingleAgent": ("srpo_envs.workflows.single_agent:SingleAgent", {}, _ANSWERED),
    "SolverVerifier": (_SOLVER_VERIFIER, {"variant": "mixed"}, _ANSWERED),
    "SolverVerifierFixed": (_SOLVER_VERIFIER, {"variant": "fixed"}, _ANSWERED),
    "SolverVerifierRouted": (_SOLVER_VERIFIER, {"variant": "routed"}, _ANSWERED),
    "EvalOpt": ("srpo_envs.workflows.eval_opt:EvalOpt", {}, _ANSWERED),
    "Voting": ("srpo_envs.workflows.voting:Voting", {}, _ANSWERED),
    "OrchestratorWorkers": ("srpo_envs.workflows.orchestrator_workers:OrchestratorWorkers", {}, _ANSWERED),
    "Search": (_SEARCH, {"variant": "routed"}, ("QA", "Village")),
    "SearchFixed": (_SEARCH, {"variant": "fixed"}, ("QA", "Village")),
    "SearchAgent": ("srpo_envs.workflows.search_agent:SearchAgent", {}, ("QA", "Village")),
}
"""By the last part of a name: class, arguments the name fixes, and the families it makes sense for."""


def register_all() -> None:
    """Register version 0 of every pair; nothing is imported before an environment is made."""
    for workflow, (entry_point, fixed, families) in WORKFLOWS.items():
        for family in families:
            register(f"{NAMESPACE}/{family}{workflow}-v0", Pairing(entry_point, FAMILIES[family], fixed))
