"""Which episodes to show of many: those that say most, and a fair sample beside them.

Reports and trackers show the same choice, so that what is seen in one is found in the other::

    for shown in choose_episodes(read_episodes("runs/mine/events/step-000080.jsonl"), 6):
        print(shown.reason, shown.episode.episode_id)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from srpo_envs.records import Episode


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """An episode that was chosen, and why."""

    episode: Episode
    """The episode."""
    reason: str
    """``best``, ``worst``, ``malformed``, ``largest K`` or ``sampled``."""


def num_malformed(episode: Episode) -> int:
    """Return how many outputs of an episode its parsers refused."""
    return sum(not member.is_valid for event in episode.events for member in event.members)


def largest_cardinality(episode: Episode) -> int:
    """Return the largest K of an episode; 0 without an event."""
    return max((event.cardinality for event in episode.events), default=0)


def choose_episodes(episodes: Iterable[Episode], number: int, seed: int = 0) -> list[ShownEpisode]:
    """Choose at most so many episodes: best, worst, most malformed, largest K, then a sample of the others.

    The best and the worst are by reward less penalties; of equal ones the longest shows most, then the first. Where all
    are equally good there is no worst one. No episode is chosen twice.

    Args:
        episodes: Any number; read once, and no more of them kept than are shown.
        number: How many at most.
        seed: Another seed draws another sample.
    """
    best: dict[str, tuple[tuple[float, int], Episode]] = {}
    sample: list[Episode] = []
    rng = random.Random(seed)
    for place, episode in enumerate(episodes):
        for reason, score in _SCORES.items():
            rank = (score(episode), len(episode.events))
            if reason not in best or rank > best[reason][0]:
                best[reason] = (rank, episode)
        _reservoir(sample, episode, place, number, rng)
    chosen = {shown.episode.episode_id: shown for shown in reversed(_remarkable(best))}
    rng.shuffle(sample)  # early episodes stay in their places, and the last places may be cut off
    for episode in sample:
        chosen.setdefault(episode.episode_id, ShownEpisode(episode, "sampled"))
    return sorted(chosen.values(), key=lambda shown: _REASONS.index(shown.reason))[:number]


def _gain(episode: Episode) -> float:
    return episode.reward - episode.penalty


_SCORES: dict[str, Callable[[Episode], float]] = {
    "best": _gain,
    "worst": lambda episode: -_gain(episode),
    "malformed": num_malformed,
    "largest K": largest_cardinality,
}
_REASONS = (*_SCORES, "sampled")


def _remarkable(best: dict[str, tuple[tuple[float, int], Episode]]) -> list[ShownEpisode]:
    """The first of each kind that there is one of, in the order in which they are shown."""
    found = {reason: ShownEpisode(episode, reason) for reason, (_, episode) in best.items()}
    if found and _gain(found["best"].episode) == _gain(found["worst"].episode):
        del found["worst"]
    if found and not num_malformed(found["malformed"].episode):
        del found["malformed"]
    return list(found.values())


def _reservoir(sample: list[Episode], episode: Episode, place: int, number: int, rng: random.Random) -> None:
    """Keep every episode met so far with the same chance."""
    if len(sample) < number:
        sample.append(episode)
    elif (drawn := rng.randrange(place + 1)) < number:
        sample[drawn] = episode
