"""`AecSetEnv`: any `SetEnv` as a PettingZoo agent-environment-cycle environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from pettingzoo import AECEnv

from srpo_envs.core import SetEnv
from srpo_envs.errors import BudgetOverrunError, TokenCountError
from srpo_envs.records import ActiveSet, StepResult
from srpo_envs.spaces import FreeText
from srpo_envs.views import _seats


class AecSetEnv(AECEnv[str, "_seats.Observation", str]):  # type: ignore[misc]  # pettingzoo has no types
    """`agent_selection` walks the members of the active set; the world moves after the last of them.

    - Every member sees the same pre-action state: what one member says is shown to nobody before the set is complete.
    - Agents outside the set are not selected; all agents stay in ``agents`` until the end and then take their ``None``
      steps.
    - The event's reward is paid once to every agent, active or not. `last` returns what has gathered since the agent
      last acted, so an agent that acted early receives the final reward in its last, ``None`` step.
    - ``infos[agent]`` is the action spec, at the end with ``outcome``; see `srpo_envs.views._seats.agent_infos`.

    Args:
        env: The environment to show; its own `SetEnv` interface stays usable as ``set_env``.
        render_mode: ``ansi`` makes `render` return text.
    """

    def __init__(self, env: SetEnv, render_mode: str | None = None) -> None:
        super().__init__()
        self.set_env = env
        self.render_mode = render_mode
        # pettingzoo's aec_to_parallel would ask all agents at once, those of later events before their turn has come.
        self.metadata = {"name": _seats.display_name(env), "render_modes": ["ansi"], "is_parallelizable": False}
        self.possible_agents = env.possible_agents
        self.agents: list[str] = []
        self.observation_spaces = {agent: _seats.observation_space() for agent in self.possible_agents}
        self.action_spaces = {agent: FreeText() for agent in self.possible_agents}
        self.agent_selection = ""
        self._texts: dict[str, str] = {}
        """Outputs of the pending set so far; committed together."""

    def observation_space(self, agent: str) -> spaces.Dict:
        """Return the agent's observation space, the same object every time."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> FreeText:
        """Return the agent's action space, the same object every time."""
        return self.action_spaces[agent]

    def observe(self, agent: str) -> _seats.Observation:
        """Return what the agent sees of the pending set."""
        return dict(self._observations[agent])

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start an episode; arguments as in `SetEnv.reset`."""
        active = self.set_env.reset(seed=seed, options=_seats.reset_options(options))
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._show(active, None)

    def step(self, action: str | None) -> None:
        """Take the selected agent's text; the last member's text commits the event.

        Args:
            action: The text, or None for an agent whose episode has ended.

        Raises:
            EnvMisuseError: before the first reset or after the last ``None`` step.
            MemberMismatchError: the action of an active agent is not a string.
            BudgetOverrunError: a text of the set is beyond its member's share; the first member is selected again.
            TokenCountError: there is a budget of team tokens and nobody counts them; likewise.
            SurroundingsError: a tool or the grader failed; the last member's step may be tried again.
        """
        if self.agents and (self.terminations[self.agent_selection] or self.truncations[self.agent_selection]):
            self._was_dead_step(action)
            return
        active = _seats.pending_set(self.set_env)
        agent = self.agent_selection
        self._texts[agent] = _seats.require_text(agent, action)
        waiting = [member.agent for member in active.members if member.agent not in self._texts]
        # The transition comes first: when it raises, nothing of this view has changed and the step can be repeated.
        try:
            result = None if waiting else self.set_env.step(_seats.set_action(self.set_env, self._texts))
        except (BudgetOverrunError, TokenCountError):  # of a text that may be an earlier member's
            self._texts, self.agent_selection = {}, active.members[0].agent
            raise
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if result is None:
            self.agent_selection = waiting[0]
        else:
            self._commit(result)

    def _commit(self, result: StepResult) -> None:
        self.rewards = dict.fromkeys(self.agents, result.reward)
        self.terminations = dict.fromkeys(self.agents, result.terminated)
        self.truncations = dict.fromkeys(self.agents, result.truncated)
        self._accumulate_rewards()
        self._show(result.next, result)

    def _show(self, active: ActiveSet | None, result: StepResult | None) -> None:
        """Present a set to its members; at the end the first agent comes up for its ``None`` step."""
        self._texts = {}
        self._observations = _seats.observe(active, self.possible_agents)
        self.infos = _seats.agent_infos(active, result, self.possible_agents)
        self.agent_selection = active.members[0].agent if active else self.agents[0]

    def render(self) -> str | None:
        """Return the last transition and the pending set as text in mode ``ansi``, else None."""
        return _seats.render_ansi(self.set_env) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Release the environment; safe to call more than once."""
        self.agents = []
        self.set_env.close()
