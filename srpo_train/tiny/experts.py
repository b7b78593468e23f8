r"""Scripted members that write right and spoiled responses for every role, inside the real environment.

The prompts are exactly those a policy will meet, because `SolverVerifier` writes them. At each event an expert with one
set of habits writes the response a policy shall imitate, and an expert with other habits writes the response that the
environment consumes, so that clean answers are also learnt in the company of wrong drafts and hasty verdicts::

    for example in play_examples(env, task_index=3, rng=rng, target=CLEAN, committed=SPOILED):
        example.event_type, example.prompt, example.response
        # 'solver', 'Compute 3*7-4 ...\nSolve.', '<think>3*7=1-4=7</think>\\boxed{7}'
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError
from srpo_envs.records import ActiveSet, Event, Member
from srpo_envs.tasks.arithmetic import Arithmetic, partial_results, write_partial_results
from srpo_envs.tasks.base import Task
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier

SEATS = (1, 2, 3, 4, 5)
"""Numbers of solvers the examples cover."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """How often an expert errs; every field is a probability and 0 is flawless.

    Example:
        ``Habits(wrong_step=0.1)`` gets a chain of three steps right in about 0.9**3 of its responses.
    """

    wrong_step: float = 0.0
    """A step's result is replaced by a random digit, from which the chain goes on."""
    flipped_minus: float = 0.0
    """A subtraction is done the wrong way round, b - a for a - b; drawn once for a response."""
    bare_guess: float = 0.0
    """A solver boxes a random digit without working."""
    random_verdict: float = 0.0
    """A verifier decides by the toss of a coin."""
    random_choice: float = 0.0
    """An aggregator boxes a random draft's answer."""
    random_route: float = 0.0
    """A router picks a random number of solvers; they are all alike, so it names the first ones."""
    malformed: float = 0.0
    """A response of any role is empty of what its parser needs."""


CLEAN = Habits()
"""No mistakes."""


@dataclass(frozen=True, slots=True)
class Example:
    """One response to imitate."""

    event_type: str
    """The kind of event: solver, revision, verifier, aggregator or router."""
    prompt: str
    """The member's prompt, as the environment wrote it."""
    response: str
    """The text to write."""


@dataclass(slots=True)
class _Board:
    """What has been committed in one episode, as experts see it."""

    task: Task
    num_seats: int
    drafts: list[str | None]  # one answer per draft, None for a malformed one

    @property
    def favourite(self) -> str:
        """The most frequent draft answer; the right one wins a tie, so that the best use of the drafts is taught."""
        gold: str = self.task.gold
        counts = Counter(draft for draft in self.drafts if draft is not None)
        if not counts:
            return gold
        best = max(counts.values())
        leaders = [answer for answer, count in counts.items() if count == best]
        return gold if gold in leaders else leaders[0]


def play_examples(
    env: SetEnv, *, task_index: int, rng: np.random.Generator, target: Habits, committed: Habits
) -> Iterator[Example]:
    """Play one episode and yield one example per event.

    Members of a set share one prompt, so one of them stands for all.

    Args:
        env: A solver-verifier or single-agent environment over `Arithmetic` tasks.
        task_index: Which task.
        rng: Source of all choices.
        target: Habits of the responses to imitate.
        committed: Habits of the responses the environment consumes.

    Raises:
        ConfigError: the environment has a role no expert plays.
    """
    active: ActiveSet | None = env.reset(options={"task_index": task_index})
    board = _Board(env.tasks.task(task_index), getattr(env, "num_solvers", 1), [])
    while active is not None:
        member = active.members[0]
        yield Example(active.event_type, member.prompt, _respond(member, board, target, rng))
        texts = [_respond(seat, board, committed, rng) for seat in active.members]
        result = env.step(active.outputs(texts))
        board.drafts += _drafts_of(result.event)
        active = result.next


def sample_environment(rng: np.random.Generator, level: int, *, seed: int = 0) -> SetEnv:
    """Return a random workflow over training tasks of a level: any variant, one to five solvers, one or two rounds."""
    tasks = Arithmetic(level=level, split="train", seed=seed)
    variant = rng.choice(["single", "fixed", "mixed", "routed"], p=[0.1, 0.2, 0.4, 0.3])
    if variant == "single":
        return SingleAgent(tasks)
    return SolverVerifier(
        tasks, variant=variant, num_solvers=int(rng.choice(SEATS)), max_rounds=int(rng.integers(1, 3))
    )


def with_random_company(habits: Habits, rng: np.random.Generator) -> Habits:
    """Return `habits` with a random share of wrong steps, so that a policy meets drafts of every quality."""
    return dataclasses.replace(
        habits, wrong_step=float(rng.uniform(0.0, 0.5)), random_verdict=float(rng.uniform(0.2, 1.0)), malformed=0.02
    )


# --- one expert per role ------------------------------------------------------------------------------------------


def _respond(member: Member, board: _Board, habits: Habits, rng: np.random.Generator) -> str:
    """Write one response in a member's role."""
    if member.role not in _EXPERTS:
        raise ConfigError(f"no expert plays role {member.role!r}; expected one of {', '.join(sorted(_EXPERTS))}")
    text = _EXPERTS[member.role](board, habits, rng)
    return _break_format(text, rng) if rng.random() < habits.malformed else text


def _solve(board: _Board, habits: Habits, rng: np.random.Generator) -> str:
    if rng.random() < habits.bare_guess:
        return _boxed(_digit(rng))
    start, steps = board.task.info["start"], board.task.info["steps"]
    results = _spoiled_results(start, steps, habits, rng)
    return f"<think>{write_partial_results(start, steps, results)}</think>{_boxed(results[-1])}"


def _spoiled_results(
    start: int, steps: Sequence[tuple[str, int]], habits: Habits, rng: np.random.Generator
) -> list[int]:
    is_flipped = rng.random() < habits.flipped_minus
    results: list[int] = []
    for op, digit in steps:
        value = results[-1] if results else start
        result = (digit - value) % 10 if op == "-" and is_flipped else partial_results(value, [(op, digit)])[0]
        results.append(_digit(rng) if rng.random() < habits.wrong_step else result)
    return results


def _verify(board: _Board, habits: Habits, rng: np.random.Generator) -> str:
    is_approved = board.favourite == board.task.gold and any(draft is not None for draft in board.drafts)
    if rng.random() < habits.random_verdict:
        is_approved = rng.random() < 0.5
    return f"<verify>{'approve' if is_approved else 'reject'}</verify>"


def _aggregate(board: _Board, habits: Habits, rng: np.random.Generator) -> str:
    readable = [draft for draft in board.drafts if draft is not None]
    if readable and rng.random() < habits.random_choice:
        return _boxed(readable[int(rng.integers(len(readable)))])
    return _boxed(board.favourite)


def _route(board: _Board, habits: Habits, rng: np.random.Generator) -> str:
    size = 1 if board.drafts else board.num_seats  # everybody drafts first; after a rejection one solver revises
    if rng.random() < habits.random_route:
        size = int(rng.integers(1, board.num_seats + 1))
    return f"<route>{','.join(str(seat) for seat in range(1, size + 1))}</route>"


_EXPERTS: dict[str, Callable[[_Board, Habits, np.random.Generator], str]] = {
    "solver": _solve,
    "verifier": _verify,
    "aggregator": _aggregate,
    "router": _route,
}


def _drafts_of(event: Event) -> list[str | None]:
    return [member.parsed for member in event.members if member.role == "solver"]


def _boxed(answer: object) -> str:
    return f"\\boxed{{{answer}}}"


def _digit(rng: np.random.Generator) -> int:
    return int(rng.integers(10))


def _break_format(text: str, rng: np.random.Generator) -> str:
    """Cut a response before its decision is complete."""
    return text[: int(rng.integers(len(text) - 2))]
