"""An environment of ours as a verifiers environment; this module's name is its id there."""

from srpo_envs.integrations.verifiers import OneReply, team

ArithmeticTasks, ArithmeticTeam = team("ArithmeticSolverVerifierFixed-v0", num_solvers=3)
__all__ = ["ArithmeticTasks", "ArithmeticTeam", "OneReply"]
