"""`ParallelSetEnv`: any `SetEnv` as a PettingZoo parallel environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from pettingzoo import ParallelEnv

from srpo_envs.core import SetEnv
from srpo_envs.spaces import FreeText
from srpo_envs.views import _seats


class ParallelSetEnv(ParallelEnv[str, "_seats.Observation", str]):  # type: ignore[misc]  # pettingzoo has no types
    """One step is one event; all agents stay until the end and see whether they are active.

    - ``agents`` is every possible agent until the episode ends, then empty.
    - Observations are ``{"prompt": str, "active": 0 or 1}``; an inactive agent's prompt is empty.
    - ``infos[agent]`` is the action spec, at the end with ``outcome``; see `srpo_envs.views._seats.agent_infos`.
    - An active agent's action is its output. An inactive agent's action is a private draft: it is ignored, appears in
      no record, and may be left out.
    - Every agent is paid the event's reward once, whether it was active or not, because the reward is the team's.
      Do not add rewards up over agents.

    Args:
        env: The environment to show; its own `SetEnv` interface stays usable as ``set_env``.
        render_mode: ``ansi`` makes `render` return text.
    """

    def __init__(self, env: SetEnv, render_mode: str | None = None) -> None:
        self.set_env = env
        self.render_mode = render_mode
        self.metadata = {"name": _seats.display_name(env), "render_modes": ["ansi"], "is_parallelizable": True}
        self.possible_agents = env.possible_agents
        self.agents: list[str] = []
        self.observation_spaces = {agent: _seats.observation_space() for agent in self.possible_agents}
        self.action_spaces = {agent: FreeText() for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Dict:
        """Return the agent's observation space, the same object every time."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> FreeText:
        """Return the agent's action space, the same object every time."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, _seats.Observation], dict[str, _seats.Info]]:
        """Start an episode; arguments as in `SetEnv.reset`."""
        active = self.set_env.reset(seed=seed, options=_seats.reset_options(options))
        self.agents = list(self.possible_agents)
        return _seats.observe(active, self.agents), _seats.agent_infos(active, None, self.agents)

    def step(
        self, actions: Mapping[str, str]
    ) -> tuple[
        dict[str, _seats.Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, _seats.Info]
    ]:
        """Consume the active agents' texts as one event.

        Args:
            actions: Text by agent; at least one per active agent.

        Raises:
            EnvMisuseError: before the first reset or after the end.
            MemberMismatchError: an active agent's text is missing, an agent is unknown, or a text is not a string.
            SurroundingsError: a tool or the grader failed; the same step may be tried again.
        """
        result = self.set_env.step(_seats.set_action(self.set_env, actions))
        agents = self.agents
        if result.next is None:
            self.agents = []
        return (
            _seats.observe(result.next, agents),
            dict.fromkeys(agents, result.reward),
            dict.fromkeys(agents, result.terminated),
            dict.fromkeys(agents, result.truncated),
            _seats.agent_infos(result.next, result, agents),
        )

    def render(self) -> str | None:
        """Return the last transition and the pending set as text in mode ``ansi``, else None."""
        return _seats.render_ansi(self.set_env) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Release the environment; safe to call more than once."""
        self.agents = []
        self.set_env.close()
