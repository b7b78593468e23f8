"""A collection without an end: jobs join while others run, and the engines can be brought to rest in between."""

from __future__ import annotations

from collections.abc import Sequence

from srpo_train.collect.asynchronous import Asynchronous
from srpo_train.collect.collection import Collection
from srpo_train.collect.jobs import EpisodeJob


class Stream:
    """Episodes under way, driven turn by turn from one thread; `Collector.open_stream` makes it.

    Args:
        collection: The episodes.
        driver: Takes them forward.
    """

    def __init__(self, collection: Collection, driver: Asynchronous) -> None:
        self._collection = collection
        self._driver = driver

    def add(self, jobs: Sequence[EpisodeJob]) -> None:
        """Add episodes, whole groups of them; they begin at the next turn."""
        self._collection.add(jobs)

    def turn(self, *, may_ask: bool = True) -> None:
        """Go round once: environments that have moved, new requests, answers.

        Args:
            may_ask: Whether new events are asked for; without it the engines come to rest, episodes stay as they are.

        Raises:
            EngineError: an engine failed as a whole.
            SrpoError: the environments are driven wrongly or cannot work.
        """
        self._driver.turn(may_ask=may_ask)

    @property
    def is_running(self) -> bool:
        """Whether an episode is not at its end."""
        return self._collection.is_running

    @property
    def is_at_rest(self) -> bool:
        """Whether no request is under way, so that weights may be changed."""
        return self._driver.is_at_rest

    @property
    def generate_s(self) -> float:
        """Seconds in engines so far."""
        return self._collection.generate_s

    @property
    def env_s(self) -> float:
        """Seconds of waiting for environments so far."""
        return self._collection.env_s

    @property
    def num_retries(self) -> int:
        """Environment steps made again so far because their surroundings failed."""
        return self._collection.num_retries

    def close(self) -> None:
        """Give every episode up and bring the engines to rest."""
        self._driver.settle()
        self._collection.abandon()
