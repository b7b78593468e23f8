"""How ``builtin:tiny-team`` came to be: a team that works chains of digits out, or guesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from srpo_envs.records import Episode
from srpo_train.tiny.arithmetic.experts import (
    CLEAN,
    ArithmeticCast,
    TeamHabits,
    sample_environment,
    with_random_company,
)
from srpo_train.tiny.curriculum import Curriculum, Measurement, Phase
from srpo_train.tiny.experts import Example, play_examples

SPOILED = TeamHabits(
    wrong_step=0.12,
    flipped_minus=0.35,
    bare_guess=0.65,
    random_verdict=0.30,
    random_choice=0.30,
    random_route=0.50,
    malformed=0.005,
)
"""Habits of the second phase."""


def play(level: int, habits: TeamHabits, rng: np.random.Generator) -> Iterator[Example]:
    """Play one training episode in a random workflow and in random company."""
    env = sample_environment(rng, level)
    company = with_random_company(habits, rng)
    index = int(rng.integers(env.tasks.num_tasks))
    return play_examples(env, ArithmeticCast, task_index=index, rng=rng, target=habits, committed=company)


def draft_rates(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return ``right/solver``, the share of drafts, first or revised, that name the gold answer."""
    drafts = [
        member.parsed == episode.task["gold"]
        for episode in episodes
        for event in episode.events
        for member in event.members
        if member.role == "solver"
    ]
    return {"right/solver": sum(drafts) / len(drafts)} if drafts else {}


_LEVELS = {1: 0.1, 2: 0.6, 3: 0.3}
_TEAM_ID = "srpo_envs/ArithmeticSolverVerifier-v0"
_TEAM = {"num_solvers": 3, "max_rounds": 2}

ARITHMETIC = Curriculum(
    name="tiny-team",
    clean=CLEAN,
    phases=(
        Phase(
            name="clean",
            habits=TeamHabits(random_route=0.5),
            level_weights=_LEVELS,
            num_steps=1200,
            learning_rate=3e-3,
        ),
        Phase(name="spoiled", habits=SPOILED, level_weights=_LEVELS, num_steps=300, learning_rate=1e-3),
    ),
    play=play,
    role_weights={"solver": 0.50, "revision": 0.15, "verifier": 0.10, "aggregator": 0.15, "router": 0.10},
    pieces=r"[0-9]|[-+*=]|\n",
    measurements={
        "team": Measurement(env_id=_TEAM_ID, kwargs={"level": 2, **_TEAM}),
        "team_greedy": Measurement(env_id=_TEAM_ID, kwargs={"level": 2, **_TEAM}, temperature=0.0),
        "team_level_3": Measurement(env_id=_TEAM_ID, kwargs={"level": 3, **_TEAM}),
        "team_routed": Measurement(env_id="srpo_envs/ArithmeticSolverVerifierRouted-v0", kwargs={"level": 2, **_TEAM}),
        "single": Measurement(env_id="srpo_envs/ArithmeticSingleAgent-v0", kwargs={"level": 2}),
    },
    rates=draft_rates,
)
"""``team`` is the setting of the demo."""
