"""Standard views of any `SetEnv`: PettingZoo parallel and AEC, Gymnasium. None is written per workflow."""

from srpo_envs.views.aec import AecSetEnv
from srpo_envs.views.joint import JointSetEnv
from srpo_envs.views.parallel import ParallelSetEnv

__all__ = ["AecSetEnv", "JointSetEnv", "ParallelSetEnv"]
