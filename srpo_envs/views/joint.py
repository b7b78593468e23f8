"""`JointSetEnv`: any `SetEnv` as a Gymnasium environment with one controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces

from srpo_envs.core import SetEnv
from srpo_envs.records import ActiveSet, StepResult
from srpo_envs.spaces import FreeText
from srpo_envs.views import _seats


class JointSetEnv(gymnasium.Env[Any, Any]):
    """One controller acts for the whole set: the action is a text for every agent, the observation a view of each.

    Both spaces are ``Dict`` over all possible agents, so that they stay the same while K varies; entries of inactive
    agents are ignored and may be left out of an action. ``info`` holds the facts of the pending set
    (`srpo_envs.views._seats.set_info`), ``agents`` (the members, in member order), ``malformed`` after a transition
    (reason by agent) and, at the end, ``outcome``.

    In vector environments use ``AsyncVectorEnv(..., shared_memory=False)``, because text has no fixed size. With
    ``AutoresetMode.SAME_STEP`` the finished episode's observation and info are ``infos["final_obs"]`` and
    ``infos["final_info"]``.

    Args:
        env: The environment to show; its own `SetEnv` interface stays usable as ``set_env``.
        render_mode: ``ansi`` makes `render` return text.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (gymnasium's own declaration is a plain dict)

    def __init__(self, env: SetEnv, render_mode: str | None = None) -> None:
        self.set_env = env
        self.render_mode = render_mode
        self.observation_space = spaces.Dict({agent: _seats.observation_space() for agent in env.possible_agents})
        self.action_space = spaces.Dict({agent: FreeText() for agent in env.possible_agents})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, _seats.Observation], _seats.Info]:
        """Start an episode; arguments as in `SetEnv.reset`."""
        super().reset(seed=seed)
        active = self.set_env.reset(seed=seed, options=_seats.reset_options(options))
        return self._observe(active), self._info(active, None)

    def step(self, action: Mapping[str, str]) -> tuple[dict[str, _seats.Observation], float, bool, bool, _seats.Info]:
        """Consume the active agents' texts as one event.

        Args:
            action: Text by agent; at least one per active agent.

        Raises:
            EnvMisuseError: before the first reset or after the end.
            MemberMismatchError: an active agent's text is missing, an agent is unknown, or a text is not a string.
            SurroundingsError: a tool or the grader failed; the same step may be tried again.
        """
        result = self.set_env.step(_seats.set_action(self.set_env, action))
        return (
            self._observe(result.next),
            result.reward,
            result.terminated,
            result.truncated,
            self._info(result.next, result),
        )

    def _observe(self, active: ActiveSet | None) -> dict[str, _seats.Observation]:
        return _seats.observe(active, self.set_env.possible_agents)

    def _info(self, active: ActiveSet | None, result: StepResult | None) -> _seats.Info:
        info = _seats.set_info(active, result)
        info["agents"] = tuple(member.agent for member in active.members) if active else ()
        if result:
            info["malformed"] = {
                record.agent: record.malformed_reason for record in result.event.members if record.malformed_reason
            }
        return info

    def render(self) -> str | None:
        """Return the last transition and the pending set as text in mode ``ansi``, else None."""
        return _seats.render_ansi(self.set_env) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Release the environment; safe to call more than once."""
        self.set_env.close()
