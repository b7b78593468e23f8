"""How `check_set_env` explores an environment: texts to answer with, and traces of what it announced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from srpo_envs.core import SetEnv, SetEnvFactory
from srpo_envs.records import ActiveSet, Episode, Member, StepResult
from srpo_envs.spaces import FreeText

TextPolicy = Callable[[Member, np.random.Generator], str]
"""Answers one member; draws only from the generator it is given."""

HOSTILE_TEXTS = (
    "",
    " \n\t",
    "x" * 100_000,
    "\\boxed{" * 5_000,
    "\\boxed{}",
    "<verify>approve</verify><verify>reject</verify>",
    "<route>0</route>",
    "<route>999999999999</route>",
    "<think>never ends",
    "$question $$ ${drafts} %s {0}",
    "__import__('os').system('exit 1')",
    "9" * 5_000 + "**" + "9" * 5_000,
    "答案是七\u200b\u202e\x00",
    "\ud800",  # a lone surrogate: a Python string that UTF-8 cannot hold
)
"""Answers that no role should fall over: empty, huge, contradictory, unfinished, code, odd Unicode."""


def default_policy(member: Member, rng: np.random.Generator) -> str:
    """Answer with a mixture: over half in the common formats, the rest hostile or random text."""
    kind = rng.random()
    if kind < 0.2:
        tag = "search" if rng.random() < 0.5 else "answer"
        return f"<think>step {rng.integers(10)}</think><{tag}>text {rng.integers(10)}</{tag}>"
    if kind < 0.6:
        verdict = "approve" if rng.random() < 0.5 else "reject"
        route = ("1", "1,2", "STOP")[rng.integers(3)]
        box = ("Correct", "Incorrect", *range(8))[rng.integers(10)]
        plan = "SUBTASK 1: this\nSUBTASK 2: that"
        program = "```python\nprint(1)\n```"
        return f"{plan}\n\\boxed{{{box}}} <verify>{verdict}</verify> <route>{route}</route>\n{program}"
    if kind < 0.8:
        return HOSTILE_TEXTS[rng.integers(len(HOSTILE_TEXTS))]
    return FreeText(rng).sample()


def counting(env: SetEnv) -> SetEnv:
    """Return an environment that takes every text for one token where nobody counts, so that budgets can be tried."""
    env.count_tokens = env.count_tokens or (lambda text: 1)
    return env


@dataclass(frozen=True, slots=True)
class Trace:
    """One episode as a caller saw it."""

    sets: tuple[ActiveSet, ...]
    """Every announced set, in order."""
    results: tuple[StepResult, ...]
    """What each step returned."""
    episode: Episode
    """The record at the end."""
    is_over: bool
    """False when the episode was still running after ``max_events`` events."""


@dataclass(eq=False)
class Probe:
    """An environment under test, how it is explored, and what was seen of it."""

    make_env: SetEnvFactory
    num_episodes: int
    seed: int
    policy: TextPolicy
    notes: list[str] = field(default_factory=list)
    """Lines of what could not be checked."""

    @functools.cached_property
    def traces(self) -> tuple[Trace, ...]:
        """Explored episodes, one after the other in one environment."""
        env = self.make_env()
        traces = tuple(self.play(env, None if index else self.seed, index) for index in range(self.num_episodes))
        env.close()
        return traces

    def play(self, env: SetEnv, seed: int | None, index: int) -> Trace:
        """Play one episode to its end; `index` selects the policy's stream of randomness."""
        return run_to_end(self.walk(env, seed, index))

    def walk(self, env: SetEnv, seed: int | None, index: int) -> Iterator[Trace]:
        """Play one episode and yield the trace so far after every step, so that walks can be interleaved."""
        rng = np.random.default_rng([self.seed, index])
        active: ActiveSet | None = env.reset(seed=seed)
        sets: list[ActiveSet] = []
        results: list[StepResult] = []
        while active is not None and len(sets) < env.max_events:
            sets.append(active)
            results.append(env.step(active.outputs([self.policy(member, rng) for member in active.members])))
            active = results[-1].next
            yield Trace(tuple(sets), tuple(results), env.episode, active is None)

    def first_events_by_role(self) -> dict[str, tuple[Episode, int]]:
        """Return for each role reached where it was first asked: the episode and the index of the event."""
        found: dict[str, tuple[Episode, int]] = {}
        for trace in self.traces:
            for index, active in enumerate(trace.sets):
                for member in active.members:
                    found.setdefault(member.role, (trace.episode, index))
        return found


def run_to_end(walk: Iterator[Trace]) -> Trace:
    """Return the last trace of a walk."""
    *_, last = walk
    return last
