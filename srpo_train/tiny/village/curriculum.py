"""How ``builtin:tiny-searchers`` came to be: a team that searches for what it lacks, or for anything."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from srpo_envs.records import Episode
from srpo_envs.tasks.village import people
from srpo_train.tiny.curriculum import Curriculum, Measurement, Phase
from srpo_train.tiny.experts import Example, play_examples
from srpo_train.tiny.village.experts import (
    CLEAN,
    SearchCast,
    SearchHabits,
    names_and_relations,
    sample_environment,
    with_random_company,
)

SPOILED = SearchHabits(
    careless_query=0.20,
    wrong_relation=0.05,
    careless_answer=0.20,
    random_verdict=0.30,
    random_route=0.50,
    random_step=0.20,
    malformed=0.005,
)
"""Habits of the last phase."""


def play(level: int, habits: SearchHabits, rng: np.random.Generator) -> Iterator[Example]:
    """Play one training episode in a random workflow, in random company, and with people renamed at random.

    A policy could learn the few facts of the village by heart; where names mean somebody else in every episode, only
    what stands in the prompt helps.
    """
    env = sample_environment(rng, level)
    company = with_random_company(habits, rng)
    index = int(rng.integers(env.tasks.num_tasks))
    new_names = dict(zip(people(), rng.permutation(people()), strict=True))
    for example in play_examples(env, SearchCast, task_index=index, rng=rng, target=habits, committed=company):
        yield Example(example.event_type, rename(example.prompt, new_names), rename(example.response, new_names))


def rename(text: str, new_names: Mapping[str, str]) -> str:
    """Exchange names in a text."""
    return re.sub(r"[A-Z][a-z]+", lambda word: new_names.get(word[0], word[0]), text)


def rates_by_kind(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return ``right/<kind>`` and ``queries/<kind>``: accuracy and tool calls of each kind of question."""
    by_kind: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_kind[episode.task["info"]["kind"]].append(episode)
    rates = {}
    for kind, played in by_kind.items():
        rates[f"right/{kind}"] = sum(bool(episode.info["correct"]) for episode in played) / len(played)
        rates[f"queries/{kind}"] = sum(episode.num_tool_calls for episode in played) / len(played)
    return rates


_LEVELS = {2: 0.3, 4: 0.7}
_FAST: Any = {"learning_rate": 3e-3, "batch_size": 16}
_ROUTED = "srpo_envs/VillageSearch-v0"
_TEAM = {"level": 4, "num_searchers": 2, "max_turns": 2, "top_k": 1}

VILLAGE = Curriculum(
    name="tiny-searchers",
    clean=CLEAN,
    phases=(
        Phase(name="simple", habits=CLEAN, level_weights={2: 1.0}, num_steps=900, num_episodes=2000, **_FAST),
        Phase(name="clean", habits=CLEAN, level_weights=_LEVELS, num_steps=1800, num_episodes=3000, **_FAST),
        Phase(
            name="thorough",
            habits=CLEAN,
            level_weights={4: 1.0},
            num_steps=1500,
            num_episodes=3000,
            learning_rate=2e-3,
            batch_size=16,
        ),
        Phase(
            name="spoiled",
            habits=SPOILED,
            level_weights=_LEVELS,
            num_steps=300,
            num_episodes=1500,
            learning_rate=1e-3,
            batch_size=16,
        ),
    ),
    play=play,
    role_weights={
        "router": 0.13,
        "searcher": 0.17,
        "refinement": 0.22,
        "verifier": 0.13,
        "answerer": 0.22,
        "agent": 0.03,
        "continuation": 0.10,
    },
    pieces=r" ?[A-Za-z]+|[0-9]|[,.)]|\n",
    words=names_and_relations(),
    measurements={
        "team": Measurement(env_id=_ROUTED, kwargs=_TEAM),
        "team_greedy": Measurement(env_id=_ROUTED, kwargs=_TEAM, temperature=0.0),
        "team_fixed": Measurement(env_id="srpo_envs/VillageSearchFixed-v0", kwargs=_TEAM),
        "agent": Measurement(env_id="srpo_envs/VillageSearchAgent-v0", kwargs={"level": 4, "max_turns": 4, "top_k": 1}),
    },
    rates=rates_by_kind,
)
"""``team`` is the setting of the demo."""
