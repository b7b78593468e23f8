r"""verifiers (Prime Intellect): any environment of ours as an environment of theirs, one seat per role.

verifiers finds an environment as an installed module of that name, so a module of three names is all it takes; the
name is the id for ``vf-eval``, prime-rl and the Hub::

    # arithmetic_team.py
    from srpo_envs.integrations.verifiers import OneReply, team

    ArithmeticTasks, ArithmeticTeam = team("ArithmeticSolverVerifierFixed-v0", num_solvers=3)
    __all__ = ["ArithmeticTasks", "ArithmeticTeam", "OneReply"]

Each role is a seat with a model, endpoint and sampling of its own (``--env.verifier.model ...``). Each member of an
event is one agent run of its seat, and all members of an event run before the world moves. A run's trace carries its
event in ``trace.task.data`` (event, state, member index, cardinality, episode), the parser's verdict in ``trace.info``,
and the event's team return as its reward, so every trace of an event has the same one.

An agent run that fails fails the episode, which verifiers may retry whole: no text is put in its place. verifiers and
prime-rl know traces, not events: its trainer clips and weighs each trace by itself, and a set's ratio is not formed
there. Their seats' system prompts and tools are not used; a prompt of ours is one user message.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Iterator
from typing import Any

import httpx
from pydantic import create_model

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import EngineError
from srpo_envs.integrations import missing
from srpo_envs.records import ActiveSet, FinishReason, MemberOutput, MemberRecord

try:
    import verifiers.v1 as vf
    from verifiers.v1.configs.harness import HarnessConfig
    from verifiers.v1.runtimes import ProgramResult
    from verifiers.v1.types import content_text
except ImportError as error:
    raise missing("verifiers") from error

_REQUEST_TIMEOUT_S = 600.0


class MemberData(vf.TaskData):  # type: ignore[misc]  # verifiers is not installed where types are checked
    """What one member is asked, and where it sits."""

    episode_id: str
    event_id: str
    state_id: str
    event_type: str
    turn: int
    cardinality: int
    member_index: int
    agent: str
    role: str
    max_new_tokens: int
    stop: list[str]


class OneReply(vf.Harness[HarnessConfig]):  # type: ignore[misc]
    """Sends a member's prompt as one user message and takes the reply; runs in process and executes nothing."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: MemberData,
    ) -> ProgramResult:
        """Ask once; sampling that the run or the seat sets wins over the member's own limits."""
        body: dict[str, Any] = {
            "model": ctx.model,
            "messages": [{"role": "user", "content": data.prompt}],
            "max_tokens": data.max_new_tokens,
        }
        if data.stop:
            body["stop"] = data.stop
        async with httpx.AsyncClient(timeout=_REQUEST_TIMEOUT_S) as client:
            answer = await client.post(
                f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
            )
        failed = answer.status_code != httpx.codes.OK
        if not failed:  # where an endpoint names the stop text it cut off, as vLLM and SGLang do
            trace.info["stop_reason"] = answer.json()["choices"][0].get("stop_reason")
        return ProgramResult(exit_code=int(failed), stdout="", stderr=answer.text if failed else "")


class TasksConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which tasks are played, under ``--env.taskset.*``."""

    start: int = 0
    """Index of the first task."""
    num_tasks: int | None = None
    """How many; all when omitted."""


class SetTasks(vf.Taskset[vf.Task[vf.TaskData], TasksConfig]):  # type: ignore[misc]
    """The tasks of an environment's family, one row each; `team` makes the subclass that has them."""

    set_env: SetEnv

    def load(self) -> Iterator[vf.Task]:
        """Yield the tasks by index; a row's name is the index, with which an episode finds its task."""
        family = self.set_env.tasks
        end = family.num_tasks if self.config.num_tasks is None else self.config.start + self.config.num_tasks
        for index in range(self.config.start, min(end, family.num_tasks)):
            task = family.task(index)
            yield vf.Task(vf.TaskData(id=task.task_id, name=str(index), prompt=task.question), self.config.task)


class SetTeam(vf.Env[vf.EnvConfig]):  # type: ignore[misc]
    """A `SetEnv` played by verifiers' agents; `team` makes the subclass with a seat per role."""

    env_id: str
    env_kwargs: dict[str, Any]

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one episode; each event's members run at once, as far as ``max_concurrent_agents`` lets them."""
        env = srpo_envs.make(self.env_id, **self.env_kwargs)
        active: ActiveSet | None = await asyncio.to_thread(env.reset, options={"task_index": int(task.data.name)})
        try:
            traces: list[vf.Trace] = []
            while active is not None:
                async with asyncio.TaskGroup() as group:
                    runs = [
                        group.create_task(getattr(agents, data.role).run(vf.Task(data))) for data in member_data(active)
                    ]
                traces += [run.result() for run in runs]
                outputs = [member_output(run.result()) for run in runs]
                active = (await asyncio.to_thread(env.step, outputs)).next
            _credit(env, traces)
        finally:
            env.close()


def member_data(active: ActiveSet) -> list[MemberData]:
    """Return what each member of a set is asked."""
    return [
        MemberData(
            id=f"{active.event_id}/{member.index}",
            prompt=member.prompt,
            episode_id=active.episode_id,
            event_id=active.event_id,
            state_id=active.state_id,
            event_type=active.event_type,
            turn=active.turn,
            cardinality=active.cardinality,
            member_index=member.index,
            agent=member.agent,
            role=member.role,
            max_new_tokens=member.max_new_tokens,
            stop=list(member.stop),
        )
        for member in active.members
    ]


def member_output(trace: vf.Trace) -> MemberOutput:
    """Return a finished agent run as the output of its member.

    Raises:
        EngineError: the run failed, so there is no output.
    """
    data = trace.task.data
    if not trace.ok or not trace.assistant_messages:
        raise EngineError(f"member {data.id!r}: the agent run failed: {trace.last_error or trace.stop_condition}")
    was_cut = bool(trace.calls) and trace.calls[-1].finish_reason == "length"
    finish: FinishReason = "length" if was_cut else "stop"
    return MemberOutput(
        event_id=data.event_id,
        member_index=data.member_index,
        text=content_text(trace.assistant_messages[-1].content) + _stop_text(trace),
        policy_id=trace.agent.config.model or "",
        finish_reason=finish,
    )


def _stop_text(trace: vf.Trace) -> str:
    """Return the stop text that ended a reply, which belongs to the output; empty where an endpoint names none."""
    named = trace.info.get("stop_reason")
    return named if named in trace.task.data.stop else ""


def _credit(env: SetEnv, traces: list[vf.Trace]) -> None:
    """Give each trace its event's team return, and what became of its text."""
    records: dict[tuple[str, int], tuple[MemberRecord, float]] = {
        (event.event_id, record.member_index): (record, event.team_return or 0.0)
        for event in env.episode.events
        for record in event.members
    }
    for trace in traces:
        record, team_return = records[trace.task.data.event_id, trace.task.data.member_index]
        trace.record_reward("team_return", team_return)
        trace.record_metric("team_reward", env.episode.reward)
        trace.record_metric("malformed", float(not record.is_valid))
        trace.info |= {"parsed": record.parsed, "malformed_reason": record.malformed_reason}


def team(env_id: str, **env_kwargs: Any) -> tuple[type[SetTasks], type[SetTeam]]:
    """Return an environment of ours as verifiers' two halves: its tasks, and the team that plays them.

    Args:
        env_id: Id for `srpo_envs.make`.
        env_kwargs: Its arguments.

    Returns:
        A taskset class and an environment class, to be exported by a module of its own.
    """
    env = srpo_envs.make(env_id, **env_kwargs)
    seat = vf.AgentConfig(runtime=vf.SubprocessConfig())  # nothing runs in it: `OneReply` asks in process
    seats: dict[str, Any] = dict.fromkeys(env.roles, (vf.AgentConfig, seat))
    config = create_model("TeamConfig", __base__=vf.EnvConfig, **seats)
    played = {"env_id": env_id, "env_kwargs": env_kwargs, "__module__": __name__}
    tasks = types.new_class("Tasks", (SetTasks,), exec_body=lambda body: body.update(set_env=env, __module__=__name__))
    players = types.new_class("Team", (SetTeam, vf.Env[config]), exec_body=lambda body: body.update(played))
    return tasks, players
