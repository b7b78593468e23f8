"""Runs model-written Python programs where they can do no harm, and says as data what each of them did."""

from srpo_envs.sandbox.records import Limits, Program, Run, Status
from srpo_envs.sandbox.sandbox import Isolation, Sandbox, Session

__all__ = ["Isolation", "Limits", "Program", "Run", "Sandbox", "Session", "Status"]
