r"""Text games of other libraries as a workflow of ours: each move is an event, proposed by one player or by a team.

A library is a `Game`: a function from a game's name, a seed and the moves so far to a `Position`. The schedule asks it
through `SetEnv.call_tool`, so what the game said is stored with the event, and an episode replays and branches without
the library, from its record alone. A position is played anew from its moves each time and depends on nothing else.

Such games draw from Python's global random stream; `own_random` gives them one of their own.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from srpo_envs.core import SetEnv
from srpo_envs.errors import ScheduleError, ToolError
from srpo_envs.parsing import Malformed, Parsed
from srpo_envs.prompting import load_prompt
from srpo_envs.schedule import Outcome, Reply, Role, Schedule
from srpo_envs.tasks.base import Task

_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a game stands."""

    text: str
    """All that the player has been shown."""
    reward: float
    """What the game has paid so far."""
    is_over: bool
    """Whether the game has ended."""


Game = Callable[[str, int, Sequence[str]], Position]
"""From a game's name, a seed and the moves so far to where it stands."""


class Games:
    """The seeds of one game as tasks; the game itself pays, so there is no gold answer and nothing to grade.

    Args:
        library: Name of the library the game is from.
        game: The game's name in its library.
        size: Number of tasks.
        seed: Seed of the first task's game; the others follow.

    Raises:
        ValueError: a size below 1, or a negative seed.
    """

    def __init__(self, library: str, game: str, *, size: int = 512, seed: int = 0) -> None:
        if size < 1 or seed < 0:
            raise ValueError(f"expected size >= 1 and seed >= 0, got {size} and {seed}")
        self.game = game
        self.num_tasks = size
        self.name = f"{library}/{game}"
        self._seed = seed

    def task(self, index: int) -> Task:
        """Return task `index`, 0 <= index < num_tasks."""
        seed = self._seed + index
        return Task(f"{self.name}/{seed}", f"Play {self.game}.", None, {"game": self.game, "seed": seed})

    def prompt(self, role: str) -> str:
        """Return the template of a player."""
        return load_prompt("games", role)

    @staticmethod
    def parse_answer(text: str) -> Parsed | Malformed:
        """Read any text: a game has no answer beside its moves."""
        return Parsed(text)

    def stop(self, role: str) -> tuple[str, ...]:
        """Return no stop text."""
        return ()

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that leaves room for reasoning."""
        return 1024

    def grade(self, task: Task, answer: Any) -> float:
        """Raise `ScheduleError`: the game pays, and a schedule returns what it paid."""
        raise ScheduleError(f"{task.task_id}: a game pays its own reward; return Outcome(position.reward)")

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Return each reply's move on a line."""
        return "\n".join(str(reply.parsed) if reply.is_valid else "malformed" for reply in replies)


class GameTeam(SetEnv):
    """Players propose a move from one position, the proposal that most of them share is played, and so on to the end.

    Events of one episode (K = cardinality)::

        player K=num_players -> player K=num_players -> ... -> the game's own reward

    Of proposals shared by equally many the first is played. When no proposal has the form of a move, the first
    player's text goes to the game as it is, and the game deals with it by its own rules.

    Args:
        tasks: The game and its seeds.
        play: The library's player.
        parse: Reader of a proposal; its value is the text that goes to the game.
        num_players: K of each event.
        limits: Passed to `SetEnv`; ``max_events`` bounds the number of moves.
    """

    def __init__(
        self,
        tasks: Games,
        play: Game,
        parse: Callable[[str], Parsed | Malformed],
        *,
        num_players: int = 1,
        **limits: Any,
    ) -> None:
        if num_players < 1:
            raise ValueError(f"num_players: expected at least 1, got {num_players}")
        self.num_players = num_players
        self._play = play
        super().__init__(tasks, (Role.of(tasks, "player", parse, seats=num_players),), **limits)

    def schedule(self, task: Task) -> Schedule:
        """Move by move until the game is over."""
        moves: list[str] = []
        position = self._position(task, moves)
        while not position["is_over"]:
            proposals = yield self.ask(
                "player", self.num_players, state=f"after {len(moves)} moves", position=position["text"]
            )
            moves.append(elect(proposals))
            position = self._position(task, moves)
        info = {"answer": moves[-1], "correct": position["reward"] >= 1.0, "position": position["text"]}
        return Outcome(float(position["reward"]), info)

    def _position(self, task: Task, moves: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = self.call_tool(
            self.tasks.name, self._play_as_tool, game=task.info["game"], seed=task.info["seed"], moves=list(moves)
        )
        return found

    def _play_as_tool(self, game: str, seed: int, moves: Sequence[str]) -> dict[str, Any]:
        try:
            return asdict(self._play(game, seed, moves))
        except Exception as error:  # whatever a game stumbles over, the episode says nothing about the policy
            raise ToolError(f"{self.tasks.name} with seed {seed} failed after {len(moves)} moves: {error!r}") from error


def elect(proposals: Sequence[Reply]) -> str:
    """Return the move most players propose, the first of equals; without a readable one the first player's text."""
    votes = Counter(reply.parsed for reply in proposals if reply.is_valid)
    return max(votes, key=votes.__getitem__) if votes else proposals[0].text


@contextlib.contextmanager
def own_random(seed: int) -> Iterator[None]:
    """Run a block on a global random stream of its own; Python's and NumPy's are as they were afterwards.

    Blocks of several threads run one after another.
    """
    with _lock:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
