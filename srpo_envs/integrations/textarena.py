r"""TextArena: its single-player games played by our teams, move by move.

Importing this module registers an id; ``game`` is a TextArena id without wrappers' suffix::

    env = srpo_envs.make("srpo_envs.integrations.textarena:textarena/Play-v0", game="GuessTheNumber-v0", num_players=3)

A move is what stands in the last square brackets of a response. The players see TextArena's own transcript. Its
wrapper that puts brackets around what has none is left out: a text without a move stays one. The game pays its own
reward, and judges invalid moves by its own rules (most allow one, then end the game).

Games of several players are not shown: their players have opposed rewards, and a team here has one. Games judged by a
language model over the network, and those whose word lists NLTK must download first, need what they need.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from srpo_envs.errors import ConfigError, UnknownIdError, near_miss
from srpo_envs.integrations import missing
from srpo_envs.integrations.games import Games, GameTeam, Position, own_random
from srpo_envs.parsing import Malformed, Parsed
from srpo_envs.registry import register

try:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY
except ImportError as error:
    raise missing("textarena") from error

_MOVE = re.compile(r"\[[^\[\]]*\]")


def parse_move(text: str) -> Parsed | Malformed:
    """Read the last text in square brackets, brackets included."""
    moves = _MOVE.findall(text)
    return Parsed(moves[-1]) if moves else Malformed("no move in brackets")


def play(game: str, seed: int, moves: Sequence[str]) -> Position:
    """Play moves from the start and return where the game stands."""
    with own_random(seed):
        env = _open(game, seed)
        _, text = env.get_observation()
        is_over = False
        for move in moves:
            is_over, _ = env.step(action=move)
            _, text = env.get_observation()
        rewards, _ = env.close()
    return Position(text=text.strip(), reward=float(rewards[0]) if is_over else 0.0, is_over=is_over)


def _open(game: str, seed: int) -> Any:
    env = textarena.wrappers.LLMObservationWrapper(textarena.make(f"{game}-raw"))
    env.reset(num_players=1, seed=seed)
    return env


def make_play(game: str = "GuessTheNumber-v0", *, size: int = 512, seed: int = 0, **team: Any) -> GameTeam:
    """Return a TextArena game as an environment.

    Args:
        game: A TextArena id of a single-player game.
        size: Number of tasks, each a seed of the game.
        seed: The first of these.
        team: ``num_players`` and the limits of `GameTeam`.

    Raises:
        UnknownIdError: TextArena has no such game.
        ConfigError: the game is for several players, or cannot be opened here.
    """
    if f"{game}-raw" not in ENV_REGISTRY:
        raise UnknownIdError(f"TextArena has no game {game!r}{near_miss(game, ENV_REGISTRY)}")
    with own_random(seed):
        try:
            is_single = isinstance(_open(game, seed).state, textarena.SinglePlayerState)
        except (
            Exception
        ) as error:  # games refuse a number of players, lack data or a key, or do not parse: in many ways
            raise ConfigError(f"TextArena's {game!r} cannot be opened for one player: {error!r}") from error
    if not is_single:
        raise ConfigError(f"TextArena's {game!r} is a game of several players; a team here has one reward")
    return GameTeam(Games("textarena", game, size=size, seed=seed), play, parse_move, **team)


register("textarena/Play-v0", make_play)
