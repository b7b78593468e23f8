"""Simulated rollouts: groups of episodes on many copies of the policy, and the pushes of weights between them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from srpo_train.simulation.clock import Clock
from srpo_train.simulation.engines import EngineSpeed, SimulatedReplica
from srpo_train.simulation.scenario import Scenario
from srpo_train.simulation.workload import SimulatedEpisode, SimulatedEvent, Workload


@dataclass(slots=True, eq=False)
class SimulatedGroup:
    """The episodes of one prompt."""

    position: int
    """Its place in the order of tasks."""
    version: int
    """Version of the weights when it was begun."""
    num_running: int
    """Episodes that are not over."""
    num_tokens: int = 0
    """Sampled tokens."""
    num_row_tokens: int = 0
    """Prompt and sampled tokens of all its rows: what an update computes."""

    @property
    def is_complete(self) -> bool:
        """Whether all its episodes are over."""
        return self.num_running == 0


@dataclass(slots=True, eq=False)
class _Episode:
    group: SimulatedGroup
    events: Iterator[SimulatedEvent]
    place: int  # of its copy
    num_open: int = 0
    event: SimulatedEvent | None = None


class Fleet:
    """Copies of the policy and the episodes on them. An episode keeps to one copy, for the sake of its prefix cache.

    Args:
        clock: The time.
        scenario: Sizes and speeds.
        workload: Where episodes come from.
        num_gpus: GPUs that sample, enough for one copy at least.
        on_group: Called when all episodes of a group are over.
        in_rounds: All episodes ask at once, when the last of them has its answers and its environment has moved.
    """

    def __init__(
        self,
        clock: Clock,
        scenario: Scenario,
        workload: Workload,
        num_gpus: int,
        on_group: Callable[[SimulatedGroup], None],
        *,
        in_rounds: bool = False,
    ) -> None:
        self._clock = clock
        self._scenario = scenario
        self._workload = workload
        self._on_group = on_group
        self._in_rounds = in_rounds
        self._round: list[_Episode] = []
        self._rng = np.random.default_rng(scenario.seed)
        speed = EngineSpeed(**scenario.engine.model_dump(exclude={"gpus"}))
        self.replicas = [SimulatedReplica(clock, speed) for _ in range(num_gpus // scenario.engine.gpus)]
        self._load = [0] * len(self.replicas)
        self._positions = itertools.count()
        self._queue: deque[tuple[SimulatedGroup, SimulatedEpisode]] = deque()
        self._num_running = 0
        self._num_open = 0
        self._held: list[_Episode] | None = None
        self._when_drained: Callable[[], None] | None = None

    def begin(self, version: int) -> SimulatedGroup:
        """Begin a group."""
        size = self._scenario.group_size
        group = SimulatedGroup(next(self._positions), version, size)
        for _ in range(size):
            self._queue.append((group, self._workload.draw(self._rng)))
        self._start_waiting()
        return group

    def drain(self, then: Callable[[], None]) -> None:
        """Hold new requests back, and call when those under way are done."""
        self._held = []
        self._when_drained = then
        self._look_drained()

    def release(self) -> None:
        """Ask what was held back."""
        held, self._held = self._held or [], None
        for episode in held:
            self._ask(episode)

    def stall(self, seconds: float) -> None:
        """Let all copies stand still."""
        for replica in self.replicas:
            replica.stall(seconds)

    def _start_waiting(self) -> None:
        while self._queue and self._num_running < self._scenario.max_concurrent:
            group, events = self._queue.popleft()
            self._num_running += 1
            index = self._least_loaded()
            self._load[index] += 1
            episode = _Episode(group, iter(events), index)
            self._advance(episode)

    def _least_loaded(self) -> int:
        """Of two copies by chance the one with fewer episodes, which is nearly as good as the best of all."""
        if len(self._load) <= 2:
            return int(np.argmin(self._load))
        first, second = self._rng.integers(len(self._load), size=2)
        return int(first if self._load[first] <= self._load[second] else second)

    def _advance(self, episode: _Episode) -> None:
        """Begin the next event of an episode, or end it."""
        episode.event = next(episode.events, None)
        if episode.event is not None:
            self._ask(episode)
            return
        self._num_running -= 1
        self._load[episode.place] -= 1
        episode.group.num_running -= 1
        self._start_waiting()
        self._begin_round()
        if episode.group.is_complete:
            self._on_group(episode.group)

    def _ask(self, episode: _Episode) -> None:
        if self._held is not None:
            self._held.append(episode)
        elif self._in_rounds:
            self._round.append(episode)
            self._clock.after(0.0, self._begin_round)
        else:
            self._submit(episode)

    def _begin_round(self) -> None:
        """Ask for all episodes, if none of them is still busy."""
        if len(self._round) == self._num_running:
            waiting, self._round = self._round, []
            for episode in waiting:
                self._submit(episode)

    def _submit(self, episode: _Episode) -> None:
        event = episode.event
        assert event is not None
        episode.num_open = len(event.num_tokens)
        self._num_open += episode.num_open
        for num_prompt_tokens, num_tokens in zip(event.num_prompt_tokens, event.num_tokens, strict=True):
            self.replicas[episode.place].submit(num_prompt_tokens, num_tokens, lambda: self._answered(episode))

    def _answered(self, episode: _Episode) -> None:
        self._num_open -= 1
        episode.num_open -= 1
        if not episode.num_open:
            event, group = episode.event, episode.group
            assert event is not None
            group.num_tokens += sum(event.num_tokens)
            group.num_row_tokens += sum(event.num_tokens) + sum(event.num_prompt_tokens)
            self._clock.after(event.env_s, lambda: self._advance(episode))
        self._look_drained()

    def _look_drained(self) -> None:
        if self._when_drained and not self._num_open:
            then, self._when_drained = self._when_drained, None
            then()
