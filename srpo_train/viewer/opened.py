"""Runs that someone looks at: each followed while it grows, with what is costly to find out kept for a while."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from srpo_envs.errors import SrpoError, UnknownIdError
from srpo_envs.records import Episode
from srpo_train.event_log import step_of
from srpo_train.viewer.curves import Curves
from srpo_train.viewer.index import EpisodeIndex
from srpo_train.viewer.runs import Catalogue, RunPlace
from srpo_train.viewer.timeline import Timeline, build_timeline

if TYPE_CHECKING:
    from srpo_train.viewer.learned import LearnedStep
    from srpo_train.viewer.scoring import CheckpointScorer

logger = logging.getLogger(__name__)

UNREADABLE = (SrpoError, OSError, sqlite3.Error)
"""What a run, its log or its index may be in the way of an answer: missing, damaged, or in use; it may end."""

_MAX_LEARNED = 2
_FIRST_WAIT_S = 0.5


class OpenRun:
    """One run that is looked at.

    Args:
        place: The run.
    """

    def __init__(self, place: RunPlace) -> None:
        self.place = place
        self.curves = Curves(place.path)
        self._lock = threading.Lock()
        self._index: EpisodeIndex | None = None
        self._is_read = threading.Event()
        self._is_wanted = False  # an index in the place of one that was lost
        self._learned: OrderedDict[str, LearnedStep] = OrderedDict()

    @property
    def index(self) -> EpisodeIndex:
        """The index of its episodes, opened when it is first asked for and filled by `follow`."""
        with self._lock:
            if self._index is None:
                self._index = EpisodeIndex(self.place.path)
            return self._index

    @property
    def has_index(self) -> bool:
        """Whether anyone has asked for its episodes."""
        return self._index is not None

    def follow(self) -> None:
        """Take in what the run has gained.

        An index that was lost is made anew only after `expect`: files that appear in a directory while somebody deletes
        it keep that from succeeding.
        """
        self.curves.update()
        if self._index is not None and (self._index.is_sound or self._is_wanted):
            self._is_wanted = False
            self._index.update()
            self._is_read.set()

    def expect(self) -> None:
        """Ask for the index, or for another one in the place of one that was lost."""
        self._is_read.clear()
        self._is_wanted = True
        _ = self.index

    def wait(self) -> None:
        """Wait until the index holds a small log whole; a large one is answered from as it fills."""
        self._is_read.wait(_FIRST_WAIT_S)

    def learned(self, file: str) -> LearnedStep:
        """Return the training step that one file of the log holds, as its learner had it.

        Raises:
            ConfigError: the advantages of this run cannot be computed from its log.
            UnknownIdError: the file is no training step.
        """
        step = step_of(file)
        if step is None or self.place.kind != "run":
            raise UnknownIdError(f"{file}: samples of an evaluation, of which nothing was learned")
        with self._lock:
            if file in self._learned:
                self._learned.move_to_end(file)
                return self._learned[file]
        from srpo_train.viewer.learned import learned_step  # loads torch, which the rest of the viewer does not need

        found = learned_step(self.place, step, self.index.episodes_of(file))
        with self._lock:
            self._learned[file] = found
            while len(self._learned) > _MAX_LEARNED:
                self._learned.popitem(last=False)
        return found


class OpenRuns:
    """The runs of a catalogue, opened one by one as they are asked for, and followed by a thread meanwhile.

    Args:
        roots: See `Catalogue`.
        follow_every_s: Seconds between two looks at what has grown.
    """

    def __init__(self, roots: Sequence[Path], *, follow_every_s: float = 1.0) -> None:
        self.catalogue = Catalogue(roots)
        self._every_s = follow_every_s
        self._opened: dict[str, OpenRun] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._follow, name="run-follower", daemon=True)
        self._computing = threading.Lock()  # transformers cannot load two models at once: tied weights stay untied
        self._scorer: CheckpointScorer | None = None

    def __getitem__(self, key: str) -> OpenRun:
        """Return a run by its name, with its metrics read.

        Raises:
            UnknownIdError: there is none.
            RecordError: there is none any more.
        """
        place = self.catalogue[key]
        with self._lock:
            run = self._opened.get(key)
            if run is None or run.place.path != place.path:
                run = self._opened[key] = OpenRun(place)
        run.curves.update()
        return run

    def with_episodes(self, key: str) -> OpenRun:
        """Return a run whose episodes are indexed or being so.

        Raises:
            UnknownIdError: there is none.
        """
        run = self[key]
        if not run.has_index or not run.index.is_sound:
            run.expect()
            self._wake.set()
            run.wait()
        return run

    def timeline(self, key: str, episode_id: str, *, file: str = "", credit: bool = False, step: int = -1) -> Timeline:
        """Return the time line of an episode.

        Args:
            key: The run.
            episode_id: Which.
            file: File of the log, where several hold an episode of this id.
            credit: Also compute what was learned from it.
            step: Also score it with the checkpoint of this step; none when negative.

        Raises:
            SrpoError: what is asked for is not there, or cannot be computed.
        """
        run = self.with_episodes(key)
        file = file or run.index.file_of(episode_id)
        episode = run.index.read(episode_id, file)
        if not credit and step < 0:
            return build_timeline(episode)
        return self._with_learned(run, file, episode, step)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _with_learned(self, run: OpenRun, file: str, episode: Episode, step: int) -> Timeline:
        from srpo_train.viewer.credit import credits_of
        from srpo_train.viewer.scoring import CheckpointScorer

        with self._computing:
            learned = run.learned(file)
            credits = credits_of(learned.experience, episode, run.place.recipe)
            if step < 0:
                return build_timeline(episode, credits=credits, remark=learned.remark)
            self._scorer = self._scorer or CheckpointScorer()
            scores = self._scorer.score(run.place, step, learned.experience, episode)
        return build_timeline(episode, credits=credits, scores=scores, remark=learned.remark)

    def _follow(self) -> None:
        while not self._is_over:
            with self._lock:
                self._opened = {key: run for key, run in self._opened.items() if run.place.is_there}
                opened = list(self._opened.values())
            for run in opened:
                try:
                    run.follow()
                except UNREADABLE as error:
                    logger.warning("%s: %s", run.place.path, error)
            self._wake.wait(self._every_s)
            self._wake.clear()
