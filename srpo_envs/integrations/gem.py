r"""GEM, both ways: its games played by our teams, and our environments in its registry.

*Its games here.* Importing this module registers an id; ``game`` is an id of GEM's::

    env = srpo_envs.make("srpo_envs.integrations.gem:gem/Play-v0", game="game:GuessTheNumber-v0-easy", num_players=3)

A move is a response's last box. The team is paid what GEM's steps pay together. GEM's reasoning-gym items are better
taken from `srpo_envs.integrations.reasoning_gym`, which has the questions themselves; those of its sets that are
downloaded from a hub (``math:``, ``code:``, ``qa:``) are families of ours already.

*Ours there.* `register_all` makes every id of ours known to ``gem.make`` as a multi-agent environment::

    register_all()
    env = gem.make("srpo_envs/ArithmeticSolverVerifierFixed-v0", num_solvers=3)      # a gem.multiagent.MultiAgentEnv

One GEM step is one event, and the facts of the event are in ``infos``. GEM's vector environments and its text wrappers
are for a single agent whose observation is a string; they do not take multi-agent environments, its own neither.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import srpo_envs
from srpo_envs.core import SetEnv
from srpo_envs.errors import UnknownIdError, near_miss
from srpo_envs.integrations import missing
from srpo_envs.integrations.games import Games, GameTeam, Position, own_random
from srpo_envs.parsing import Malformed, Parsed, parse_boxed_answer
from srpo_envs.registry import register
from srpo_envs.views import ParallelSetEnv

try:
    import gem
    from gem.envs.registration import ENV_REGISTRY
    from gem.multiagent.multi_agent_env import MultiAgentEnv
except ImportError as error:
    raise missing("gem-llm") from error


# --- its games here -----------------------------------------------------------------------------------------------


def parse_move(text: str) -> Parsed | Malformed:
    r"""Read the last box of a response, as the text ``\boxed{move}``."""
    read = parse_boxed_answer(text)
    return Parsed(f"\\boxed{{{read.value}}}") if isinstance(read, Parsed) else read


def play(game: str, seed: int, moves: Sequence[str]) -> Position:
    """Play moves from the start and return where the game stands."""
    with own_random(seed):
        env = gem.make(game)
        shown, info = env.reset(seed=seed)
        lines, reward, is_over = [shown], 0.0, False
        for move in moves:
            shown, paid, terminated, truncated, info = env.step(move)
            lines += [f"> {move}", shown]
            reward += float(paid)
            is_over = bool(terminated or truncated)
    suffix = "" if is_over else info.get("suffix", "")
    return Position(text="\n".join([*lines, suffix]).strip(), reward=reward, is_over=is_over)


def make_play(game: str = "game:GuessTheNumber-v0-easy", *, size: int = 512, seed: int = 0, **team: Any) -> GameTeam:
    """Return a GEM game as an environment.

    Args:
        game: An id of GEM's.
        size: Number of tasks, each a seed of the game.
        seed: The first of these.
        team: ``num_players`` and the limits of `GameTeam`.

    Raises:
        UnknownIdError: GEM has no such game.
    """
    if game not in ENV_REGISTRY:
        raise UnknownIdError(f"GEM has no game {game!r}{near_miss(game, ENV_REGISTRY)}")
    return GameTeam(Games("gem", game, size=size, seed=seed), play, parse_move, **team)


register("gem/Play-v0", make_play)


# --- ours there ---------------------------------------------------------------------------------------------------


class GemSetEnv(MultiAgentEnv):  # type: ignore[misc]  # gem is not installed where types are checked
    """Any `SetEnv` as a multi-agent environment of GEM: one step is one event.

    Observations are prompts; those of agents that are not asked are empty. ``infos[agent]`` is the action spec of
    `ParallelSetEnv`, and ``infos[agent]["active"]`` says who is asked. Actions of others are ignored drafts.

    Args:
        env: The environment to show; its own interface stays usable as ``set_env``.
    """

    def __init__(self, env: SetEnv) -> None:
        super().__init__()
        self.set_env = env
        self._view = ParallelSetEnv(env)
        self.possible_agents = env.possible_agents
        self._observations: dict[str, dict[str, Any]] = {}

    def reset(self, seed: int | None = None) -> tuple[dict[str, str], dict[str, Any]]:
        """Start an episode."""
        self._observations, infos = self._view.reset(seed=seed)
        observations, _ = super().reset()
        self.infos = infos
        return observations, infos

    def observe(self, agent: str) -> str:
        """Return what the agent is asked; empty when it is not."""
        return str(self._observations[agent]["prompt"])

    def _validate_actions(self, actions: Mapping[str, str], active_agents: Sequence[str]) -> None:
        """Leave it to the environment, which knows who is asked and says so."""

    def _process_actions(self, actions: Mapping[str, str]) -> tuple[Any, ...]:
        self._observations, self.rewards, self.terminations, self.truncations, self.infos = self._view.step(actions)
        prompts = {agent: self.observe(agent) for agent in self.agents}
        # Copies: GEM deletes ended agents from the environment's own.
        return prompts, dict(self.rewards), dict(self.terminations), dict(self.truncations), dict(self.infos)


def register_all() -> list[str]:
    """Register every environment of ours with GEM under its own id, and return those ids; those it has are kept."""
    ids = srpo_envs.list_envs()
    for env_id in ids:
        if env_id not in ENV_REGISTRY:
            gem.register(env_id, functools.partial(_make, env_id))
    return ids


def _make(env_id: str, **kwargs: Any) -> GemSetEnv:
    return GemSetEnv(srpo_envs.make(env_id, **kwargs))
