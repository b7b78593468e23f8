"""Groups sampled ahead one by one: episodes go on over a push of weights, requests do not.

An episode that is under way when weights are pushed keeps the events it has, each with the version that sampled it, and
goes on with the new weights from its next event. Requests under way are answered before the push, and new ones wait for
it: so the members of one event share a version, and no response is of two.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from srpo_envs.errors import NoEpisodeError
from srpo_envs.records import Episode
from srpo_train.collect import EpisodeJob, FailedEpisode, Rollout
from srpo_train.collect.stream import Stream
from srpo_train.collect.tally import Ends
from srpo_train.overlap.source import Weights
from srpo_train.overlap.staleness import Begun, choose, num_admitted
from srpo_train.overlap.stopwatch import Stopwatch
from srpo_train.overlap.stored import read_json, read_rollout, write_json, write_rollout
from srpo_train.overlap.worker import Worker

logger = logging.getLogger(__name__)

_INDEX = "groups.json"
_LONGEST_PAUSE_S = 60.0


@dataclass(slots=True, eq=False)
class _Group:
    """A group that has been begun and not been trained on."""

    position: int
    version: int
    jobs: Sequence[EpisodeJob]
    num_open: int
    episodes: list[Episode] = field(default_factory=list)
    failed: list[FailedEpisode] = field(default_factory=list)
    num_surplus: int = 0
    is_taken: bool = False

    def seen(self) -> Begun:
        """What the rules of staleness need to know."""
        return Begun(position=self.position, version=self.version, is_complete=self.num_open == 0)

    def close(self) -> None:
        """Bring the episodes into the order of their jobs, whichever ended first."""
        order = {job.episode_id: number for number, job in enumerate(self.jobs)}
        self.episodes.sort(key=lambda episode: order[episode.episode_id])


@dataclass(frozen=True, slots=True)
class _Spent:
    """What a stream has spent so far, which belongs to no group."""

    generate_s: float = 0.0
    env_s: float = 0.0
    num_retries: int = 0

    @classmethod
    def of(cls, stream: Stream) -> _Spent:
        """Read a stream."""
        return cls(stream.generate_s, stream.env_s, stream.num_retries)

    def since(self, before: _Spent) -> _Spent:
        """Return what was spent after a moment."""
        return _Spent(
            self.generate_s - before.generate_s, self.env_s - before.env_s, self.num_retries - before.num_retries
        )


class GroupsAhead:
    """Keeps as many groups under way as can be trained before they are too old, on a thread.

    Args:
        open_stream: Opens a collection that tells of the ends it is given.
        snapshot: Copies the trainer's weights.
        push: Gives a copy to the engines, which are at rest, and says what it took.
        jobs_of: The jobs of the group at a position in the order of tasks, counted from 0.
        step: Training steps taken so far.
        num_steps: Training steps in all; nothing is sampled for later ones.
        per_step: Groups of a training step.
        num_parts: Parts in which a step's groups are handed out.
        max_lag: Largest number of updates between the weights of a group's oldest member and those it is trained on.
        lost_step_retries: How often as many groups as a step has may fail in a row, with growing pauses in between.
        stored: Folder of an earlier `save`, after as many steps.
        first_pause_s: Length of the first of these pauses.

    Raises:
        CheckpointError: what is stored cannot be read.
    """

    def __init__(
        self,
        open_stream: Callable[[Ends], Stream],
        snapshot: Callable[[], Weights],
        push: Callable[[Weights], dict[str, float]],
        jobs_of: Callable[[int], list[EpisodeJob]],
        *,
        step: int,
        num_steps: int,
        per_step: int,
        num_parts: int = 1,
        max_lag: int,
        lost_step_retries: int = 0,
        stored: Path | None = None,
        first_pause_s: float = 1.0,
    ) -> None:
        self._open_stream = open_stream
        self._snapshot = snapshot
        self._push = push
        self._jobs_of = jobs_of
        self._step = step
        self._num_steps = num_steps
        self._per_step = per_step
        self._num_parts = num_parts
        self._max_lag = max_lag
        self._lost_step_retries = lost_step_retries
        self._first_pause_s = first_pause_s
        self._groups: dict[int, _Group] = {}
        self._again: list[int] = []  # positions that were given up and come first
        self._next_position = step * per_step
        self._weights = snapshot()
        self._version = self._in_engines = self._weights.version
        self._is_wanted = False  # the engines, by somebody else
        self._is_resting = True
        self._num_failed_in_row = 0
        self._num_lost_steps = 0
        self._by_group_id: dict[str, _Group] = {}  # those that are not complete
        self._failed: list[FailedEpisode] = []  # of groups without any other episode
        self._push_metrics: dict[str, float] = {}
        self._counts = {"rollout/num_stale_groups": 0.0, "rollout/num_recollected_episodes": 0.0}
        self._collecting = Stopwatch()
        self._spent = _Spent()  # as it was when last reported
        self._stream: Stream | None = None
        self._worker = Worker(self._run)
        if stored:
            self._read(stored)

    # --- the trainer's side ---------------------------------------------------------------------------------------

    def take(self) -> Iterator[Rollout]:
        """Wait for the groups of the next step, part by part."""
        self._worker.start()
        num_left = self._per_step
        for number in range(self._num_parts):
            num_wanted = -(-num_left // (self._num_parts - number))
            num_left -= num_wanted
            yield self._take_part(num_wanted, num_left)

    def step_done(self, *, is_updated: bool) -> None:
        """Forget the step's groups, and offer the new weights to the engines."""
        weights = self._snapshot() if is_updated else self._weights
        with self._worker.changed:
            self._groups = {position: group for position, group in self._groups.items() if not group.is_taken}
            self._step += 1
            self._weights = weights
            self._version = weights.version
            self._worker.changed.notify_all()

    @contextlib.contextmanager
    def at_newest(self) -> Iterator[None]:
        """Let requests under way be answered and the newest weights be pushed, and hold new requests back."""
        with self._worker.changed:
            self._is_wanted = True
            self._worker.changed.notify_all()
        self._worker.await_there(lambda: self._is_resting)
        try:
            self._bring_newest()
            yield
        finally:
            with self._worker.changed:
                self._is_wanted = False
                self._worker.changed.notify_all()

    def restart(self) -> None:
        """Give up every group; their prompts come again first."""
        self._worker.stop()
        self._counts["rollout/num_stale_groups"] += len(self._groups)
        self._again = sorted([*self._groups, *self._again])
        self._groups.clear()
        self._by_group_id.clear()
        self._weights = self._snapshot()
        self._version = self._weights.version
        self._bring_newest()

    def metrics(self) -> dict[str, float]:
        """Return what was given up since the last call, and what the last push took."""
        counts, self._counts = self._counts, dict.fromkeys(self._counts, 0.0)
        push, self._push_metrics = self._push_metrics, {}
        return counts | push

    @property
    def collecting_s(self) -> float:
        """Seconds so far in which an episode was under way."""
        return self._collecting.seconds

    def save(self, folder: Path) -> None:
        """Write the complete groups, and which ones are under way: those are begun again by a resumed run."""
        with self._worker.changed:
            complete = [group for group in self._groups.values() if not group.num_open]
            again = sorted({*self._groups, *self._again} - {group.position for group in complete})
            index = {
                "versions": {str(group.position): group.version for group in complete},
                "again": again,
                "num_again_episodes": sum(len(self._jobs_of(p)) for p in again if p in self._groups),
                "next_position": self._next_position,
            }
        folder.mkdir()
        for group in complete:
            write_rollout(folder, str(group.position), _rollout([group]))
        write_json(folder / _INDEX, index)

    def close(self) -> None:
        """End the thread; what is under way is given up."""
        self._worker.stop()

    def _take_part(self, num_wanted: int, num_left: int) -> Rollout:
        chosen: list[_Group] = []

        def look() -> bool:
            found = choose(
                [group.seen() for group in self._groups.values() if not group.is_taken],
                num_wanted=num_wanted,
                num_left=num_left,
                per_step=self._per_step,
                version=self._version,
                max_lag=self._max_lag,
            )
            if found is None:
                return False
            chosen[:] = [self._groups[seen.position] for seen in sorted(found, key=lambda seen: seen.position)]
            for group in chosen:
                group.is_taken = True
            return True

        self._worker.await_there(look)
        with self._worker.changed:
            stream = self._stream
            now = _Spent.of(stream) if stream else self._spent
            spent, self._spent = now.since(self._spent), now
            failed, self._failed = self._failed, []
            return _rollout(chosen, spent=spent, failed=failed)

    def _read(self, folder: Path) -> None:
        index = read_json(folder / _INDEX)
        for name, version in index["versions"].items():
            rollout = read_rollout(folder, name)
            self._groups[int(name)] = _Group(
                position=int(name),
                version=version,
                jobs=(),
                num_open=0,
                episodes=list(rollout.episodes),
                failed=list(rollout.failed),
                num_surplus=rollout.num_surplus,
            )
        self._again = list(index["again"])
        self._next_position = index["next_position"]
        self._counts["rollout/num_recollected_episodes"] = float(index["num_again_episodes"])

    # --- the thread's side ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._stream = stream = self._open_stream(self)
        self._spent = _Spent()
        self._is_resting = False
        try:
            while True:
                self._worker.check()
                self._begin(stream)
                if self._wants_rest and stream.is_at_rest:
                    self._rest()
                elif stream.is_running:
                    with self._collecting:
                        stream.turn(may_ask=not self._wants_rest)
                else:
                    self._worker.await_here(lambda: self._wants_rest or self._num_admitted > 0)
        finally:
            stream.close()
            self._is_resting = True

    @property
    def _wants_rest(self) -> bool:
        return self._is_wanted or self._in_engines != self._weights.version

    @property
    def _num_admitted(self) -> int:
        num_needed = (self._num_steps - self._step) * self._per_step - len(self._groups)
        fresh = num_admitted(
            len(self._groups),
            per_step=self._per_step,
            max_lag=self._max_lag,
            lead=self._version - self._in_engines,
        )
        return min(num_needed, fresh)

    def _begin(self, stream: Stream) -> None:
        """Begin as many groups as may be, unless weights are to be pushed first: they would be older for nothing."""
        if self._wants_rest:
            return
        with self._worker.changed:
            for _ in range(self._num_admitted):
                position = self._again.pop(0) if self._again else self._new_position()
                jobs = self._jobs_of(position)
                group = _Group(position=position, version=self._in_engines, jobs=jobs, num_open=len(jobs))
                self._groups[position] = self._by_group_id[jobs[0].group_id] = group
                stream.add(jobs)

    def _new_position(self) -> int:
        self._next_position += 1
        return self._next_position - 1

    def _rest(self) -> None:
        """With the engines at rest: push what is new, and let somebody else have them who wants them."""
        self._bring_newest()
        if not self._is_wanted:
            return
        with self._worker.changed:
            self._is_resting = True
            self._worker.changed.notify_all()
        self._worker.await_here(lambda: not self._is_wanted)
        self._is_resting = False

    def _bring_newest(self) -> None:
        weights = self._weights
        if self._in_engines != weights.version:
            self._push_metrics = self._push(weights)
            with self._worker.changed:
                self._in_engines = weights.version

    # --- ends of episodes, told by the stream ---------------------------------------------------------------------

    def finished(self, job: EpisodeJob, episode: Episode) -> None:
        """Add an episode to its group."""
        self._by_group_id[job.group_id].episodes.append(episode)
        self._close_one(job)

    def failed(self, failed: FailedEpisode) -> None:
        """Note a dropped one."""
        self._by_group_id[failed.job.group_id].failed.append(failed)
        self._close_one(failed.job)

    def given_up(self, job: EpisodeJob) -> None:
        """Note one that its group does without."""
        self._by_group_id[job.group_id].num_surplus += 1
        self._close_one(job)

    def _close_one(self, job: EpisodeJob) -> None:
        group = self._by_group_id[job.group_id]
        with self._worker.changed:
            group.num_open -= 1
            if group.num_open:
                return
            del self._by_group_id[job.group_id]
            group.close()
            if not group.episodes:
                del self._groups[group.position]
                self._failed += group.failed
            self._worker.changed.notify_all()
        if group.episodes:
            self._num_failed_in_row = self._num_lost_steps = 0
        else:
            self._take_loss(group)

    def _take_loss(self, group: _Group) -> None:
        """Pause when nothing comes through: a search server may be on its way back.

        Raises:
            NoEpisodeError: it never was.
        """
        self._num_failed_in_row += 1
        if self._num_failed_in_row < self._per_step:
            return
        if self._num_lost_steps >= self._lost_step_retries:
            raise NoEpisodeError(
                f"all episodes of the last {self._num_failed_in_row} groups failed; the last: {group.failed[-1].reason}"
            )
        pause_s = min(self._first_pause_s * 2**self._num_lost_steps, _LONGEST_PAUSE_S)
        reason = group.failed[-1].reason
        logger.warning("as many groups as a step has are lost; the next in %.0f s: %s", pause_s, reason)
        self._num_failed_in_row = 0
        self._num_lost_steps += 1
        self._worker.pause(pause_s)


def _rollout(groups: Sequence[_Group], *, spent: _Spent | None = None, failed: Sequence[FailedEpisode] = ()) -> Rollout:
    spent = spent or _Spent()
    return Rollout(
        episodes=tuple(episode for group in groups for episode in group.episodes),
        failed=(*(item for group in groups for item in group.failed), *failed),
        num_stragglers=0,
        num_surplus=sum(group.num_surplus for group in groups),
        generate_s=spent.generate_s,
        env_s=spent.env_s,
        num_retries=spent.num_retries,
    )
