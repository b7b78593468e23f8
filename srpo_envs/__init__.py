"""The worlds: event records, the set-valued environment contract, workflows, tasks, grading and standard views.

Importing this package registers every environment id, those of plug-ins included, with `make`, `gymnasium.make` and
`pettingzoo.make`; workflows, tasks and graders are imported when an environment is made.
"""

from srpo_envs import errors
from srpo_envs.budget import Budget, Usage
from srpo_envs.checks import ConformanceReport, check_set_env
from srpo_envs.core import SetEnv
from srpo_envs.errors import SrpoError, SurroundingsError
from srpo_envs.parsing import Malformed, Parsed
from srpo_envs.records import (
    SCHEMA_VERSION,
    ActiveSet,
    Episode,
    Event,
    Member,
    MemberOutput,
    MemberRecord,
    StepResult,
    ToolCall,
    read_episodes,
    write_episodes,
)
from srpo_envs.registry import EnvSpec, Pairing, list_envs, load_plugins, make, register, spec
from srpo_envs.replay import branch, replay
from srpo_envs.schedule import Ask, Outcome, Reply, Role, Schedule
from srpo_envs.spaces import FreeText
from srpo_envs.tasks.base import Task, TaskFamily
from srpo_envs.views import AecSetEnv, JointSetEnv, ParallelSetEnv
from srpo_envs.workflows.registered import register_all

__all__ = [
    "SCHEMA_VERSION",
    "ActiveSet",
    "AecSetEnv",
    "Ask",
    "Budget",
    "ConformanceReport",
    "EnvSpec",
    "Episode",
    "Event",
    "FreeText",
    "JointSetEnv",
    "Malformed",
    "Member",
    "MemberOutput",
    "MemberRecord",
    "Outcome",
    "Pairing",
    "ParallelSetEnv",
    "Parsed",
    "Reply",
    "Role",
    "Schedule",
    "SetEnv",
    "SrpoError",
    "StepResult",
    "SurroundingsError",
    "Task",
    "TaskFamily",
    "ToolCall",
    "Usage",
    "branch",
    "check_set_env",
    "errors",
    "list_envs",
    "make",
    "read_episodes",
    "register",
    "replay",
    "spec",
    "write_episodes",
]

register_all()
load_plugins()
