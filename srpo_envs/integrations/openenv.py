"""OpenEnv: any `SetEnv` served in its protocol, so that OpenEnv's own clients play it over HTTP or a WebSocket.

One OpenEnv step is one event: the action is the list of all members' texts, in member order, with the event they
answer. So an event is never split over requests, and a repeated or late request is refused as stale instead of being
played twice. Every session has an environment of its own.

OpenEnv has a single ``done`` flag; whether that was an end or a truncation is ``metadata["truncated"]``. It is single
agent by design: who acts is a field of the observation, not a thing its clients know of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import EnvMisuseError
from srpo_envs.integrations import missing
from srpo_envs.records import ActiveSet, MemberOutput, StepResult
from srpo_envs.views import _seats

try:
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from openenv.core.env_server.types import EnvironmentMetadata
except ImportError as error:
    raise missing("openenv") from error


class SetAction(Action):  # type: ignore[misc]  # openenv is not installed where types are checked
    """The whole set of texts one event consumes."""

    event_id: str
    """The event that is answered."""
    texts: list[str]
    """One text per member, in member order."""


class SetObservation(Observation):  # type: ignore[misc]
    """The pending set; without members at the end.

    ``metadata`` holds the facts of `srpo_envs.views._seats.set_info`, ``terminated``, ``truncated`` and, by agent, why
    texts of the last event were ``malformed``.
    """

    event_id: str = ""
    """The event that waits for texts; empty at the end."""
    members: list[dict[str, Any]] = Field(default_factory=list)
    """One per text that is wanted: ``index``, ``agent``, ``role``, ``prompt``, ``max_new_tokens``, ``stop``."""


class OpenEnvSetEnv(Environment):  # type: ignore[misc]
    """A `SetEnv` as an OpenEnv environment.

    Args:
        env: The environment to serve.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: SetEnv) -> None:
        super().__init__()
        self.set_env = env

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> SetObservation:
        """Start an episode; `options` as in `SetEnv.reset`."""
        named = {"episode_id": episode_id} if episode_id else {}
        return _observe(self.set_env.reset(seed=seed, options={**named, **options}), None)

    def step(self, action: SetAction, timeout_s: float | None = None, **_: Any) -> SetObservation:
        """Consume the whole set as one event.

        Raises:
            EnvMisuseError: nothing is pending.
            StaleEventError: the texts answer another event.
            MemberMismatchError: there are more or fewer texts than members.
            SurroundingsError: a tool or the grader failed; the same step may be tried again.
        """
        outputs = [
            MemberOutput(event_id=action.event_id, member_index=index, text=text)
            for index, text in enumerate(action.texts)
        ]
        result = self.set_env.step(outputs)
        return _observe(result.next, result)

    @property
    def state(self) -> State:
        """The running episode: its id, its task and the number of events so far."""
        try:
            episode = self.set_env.episode
        except EnvMisuseError:  # before the first reset
            return State()
        return State(episode_id=episode.episode_id, step_count=len(episode.events), task_id=episode.task_id)

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and description of the environment."""
        described = (type(self.set_env).__doc__ or "").partition("\n")[0]
        return EnvironmentMetadata(name=_seats.display_name(self.set_env), description=described)

    def close(self) -> None:
        """Release the environment."""
        self.set_env.close()


def _observe(active: ActiveSet | None, result: StepResult | None) -> SetObservation:
    facts = _seats.set_info(active, result)
    if result:
        facts |= {
            "terminated": result.terminated,
            "truncated": result.truncated,
            "malformed": {item.agent: item.malformed_reason for item in result.event.members if item.malformed_reason},
        }
    members = active.members if active else ()
    return SetObservation(
        event_id=active.event_id if active else "",
        members=[
            {
                "index": member.index,
                "agent": member.agent,
                "role": member.role,
                "prompt": member.prompt,
                "max_new_tokens": member.max_new_tokens,
                "stop": list(member.stop),
            }
            for member in members
        ],
        done=active is None,
        reward=result.reward if result else None,
        metadata=facts,
    )


def create_app(make_env: str | Callable[[], SetEnv], max_sessions: int = 64, **kwargs: Any) -> Any:
    """Return a FastAPI application that serves an environment in OpenEnv's protocol.

    Args:
        make_env: Id for `srpo_envs.make`, or a callable that returns a new environment.
        max_sessions: Most sessions at once; each has an environment of its own.
        kwargs: Arguments of `srpo_envs.make`.

    Returns:
        The application, for ``uvicorn.run``.
    """

    def make() -> OpenEnvSetEnv:
        return OpenEnvSetEnv(srpo_envs.make(make_env, **kwargs) if isinstance(make_env, str) else make_env())

    return create_fastapi_app(make, SetAction, SetObservation, max_concurrent_envs=max_sessions)
