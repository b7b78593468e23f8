"""What the three views share: one seat per agent, how a seat sees the pending set, and how texts become outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium import spaces

from srpo_envs.core import SetEnv
from srpo_envs.errors import EnvMisuseError, MemberMismatchError, near_miss
from srpo_envs.records import ActiveSet, Event, MemberOutput, StepResult, frozen_json
from srpo_envs.spaces import FreeText

Observation = dict[str, Any]
"""``{"prompt": str, "active": 0 or 1}``."""

Info = dict[str, Any]
"""The action spec of one agent, see `agent_info`."""


def observation_space() -> spaces.Dict:
    """Return the space of one seat's observation.

    No key is called ``observation``: PettingZoo's AEC suite compares array types below that key.
    """
    return spaces.Dict({"prompt": FreeText(), "active": spaces.Discrete(2)})


def observe(active: ActiveSet | None, agents: Iterable[str]) -> dict[str, Observation]:
    """Return what each agent sees: its prompt when it is a member of the set, the empty prompt otherwise."""
    observations: dict[str, Observation] = {agent: {"prompt": "", "active": 0} for agent in agents}
    for member in active.members if active else ():
        observations[member.agent] = {"prompt": member.prompt, "active": 1}
    return observations


def set_info(active: ActiveSet | None, result: StepResult | None) -> Info:
    """Return the facts of the pending set and of the transition that led to it.

    Keys while an event is pending: ``event_id``, ``state_id``, ``event_type``, ``turn``, ``cardinality``. After a
    transition also ``penalty``; at the end ``outcome``: the team reward under ``reward`` and what the workflow says.
    """
    info: Info = {}
    if active:
        info |= {
            "event_id": active.event_id,
            "state_id": active.state_id,
            "event_type": active.event_type,
            "turn": active.turn,
            "cardinality": active.cardinality,
        }
    if result:
        info["penalty"] = result.event.penalty
        if result.next is None:
            info["outcome"] = {"reward": result.event.reward + result.event.penalty, **frozen_json(result.info)}
    return info


def agent_infos(active: ActiveSet | None, result: StepResult | None, agents: Iterable[str]) -> dict[str, Info]:
    """Return each agent's action spec: `set_info` and the agent's own seat.

    Keys of the seat: ``active``, and for members ``member_index``, ``role``, ``max_new_tokens``, ``stop``. An agent
    whose output the last transition consumed also finds ``malformed_reason``, empty when its text was valid.
    """
    infos = {agent: {**set_info(active, result), "active": False} for agent in agents}
    for member in active.members if active else ():
        infos[member.agent] |= {
            "active": True,
            "member_index": member.index,
            "role": member.role,
            "max_new_tokens": member.max_new_tokens,
            "stop": member.stop,
        }
    for record in result.event.members if result else ():
        infos[record.agent]["malformed_reason"] = record.malformed_reason
    return infos


def set_action(env: SetEnv, texts: Mapping[str, str]) -> list[MemberOutput]:
    """Return the outputs of the pending set from texts by agent; texts of inactive agents are left out.

    Raises:
        EnvMisuseError: nothing is pending.
        MemberMismatchError: an active agent has no text, an agent does not exist, or a text is not a string.
    """
    active = pending_set(env)
    if unknown := sorted(set(texts) - set(env.possible_agents)):
        raise MemberMismatchError(f"no agent {unknown[0]!r}{near_miss(unknown[0], env.possible_agents)}")
    if missing := [member.agent for member in active.members if member.agent not in texts]:
        raise MemberMismatchError(
            f"event {active.event_id!r}: expected texts of {active.cardinality} active agents, missing {missing}; "
            f"infos[agent]['active'] says who acts"
        )
    return active.outputs([require_text(member.agent, texts[member.agent]) for member in active.members])


def pending_set(env: SetEnv) -> ActiveSet:
    """Return the set `env` waits for.

    Raises:
        EnvMisuseError: there is none, before the first reset or after the end.
    """
    if env.pending is None:
        raise EnvMisuseError(f"{display_name(env)}: no event is pending; call reset() first")
    return env.pending


def require_text(agent: str, action: Any) -> str:
    """Return an action unchanged.

    Raises:
        MemberMismatchError: it is not a string.
    """
    if not isinstance(action, str):
        raise MemberMismatchError(f"agent {agent!r}: expected a str action, got {type(action).__name__} {action!r:.80}")
    return action


def reset_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options meant for `SetEnv.reset`.

    PettingZoo's suites reset with ``{"options": 1}`` to see that options are taken, so that one key is dropped; every
    other unknown key is refused by `SetEnv.reset`.
    """
    return {key: value for key, value in (options or {}).items() if key != "options"}


def display_name(env: SetEnv) -> str:
    """Return the registered id, or the class name of an environment made without the registry."""
    return env.env_id or type(env).__name__


def render_ansi(env: SetEnv) -> str:
    """Return the last transition and the pending set as text."""
    if env.pending is None and not _events(env):
        return f"{display_name(env)}: not started"
    lines = [f"{display_name(env)} episode {env.episode.episode_id}: {env.episode.task_id}"]
    for event in _events(env)[-1:]:
        lines += [f"{event.event_type} (K={event.cardinality}) reward {event.reward:g}"]
        lines += [f"  {record.agent}: {record.text}" for record in event.members]
    if env.pending:
        lines += [f"waiting for {env.pending.event_type} (K={env.pending.cardinality})"]
        lines += [f"  {member.agent} <- {member.prompt}" for member in env.pending.members]
    else:
        lines += ["terminated" if env.episode.terminated else "truncated"]
    return "\n".join(lines)


def _events(env: SetEnv) -> tuple[Event, ...]:
    try:
        return env.episode.events
    except EnvMisuseError:
        return ()
