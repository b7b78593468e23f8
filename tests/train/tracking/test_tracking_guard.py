"""`srpo_train.tracking.guard`: a tracker fails alone, and gets each step once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from factories import make_episode

from srpo_envs.errors import RecordError
from srpo_train.tracking.guard import GuardedTracker, Ledger


class Recorder:
    """A tracker that keeps what it gets and fails at the steps it is told to."""

    def __init__(self, failing: tuple[int, ...] = (), *, fails_at_end: bool = False) -> None:
        self.steps: list[int] = []
        self.shown: dict[int, list[str]] = {}
        self.warnings: list[str] = []
        self.num_closed = 0
        self._failing = failing
        self._fails_at_end = fails_at_end

    def write(self, step, values, episodes) -> None:
        if step in self._failing:
            raise OSError("no space left on device")
        self.steps.append(step)
        self.shown[step] = [shown.episode.episode_id for shown in episodes]

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def close(self) -> None:
        self.num_closed += 1
        if self._fails_at_end:
            raise ConnectionError("gone")


def guarded(tracker: Recorder, ledger: Ledger | None = None, every: int = 0) -> GuardedTracker:
    return GuardedTracker("there", tracker, ledger=ledger, episodes_every=every, num_episodes=2, seed=0)


def test_a_failing_tracker_is_reported_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Recorder(failing=(2, 3), fails_at_end=True)
    sink = guarded(tracker)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 5):
            sink.write(step, {})
        sink.warn("look")
        sink.close()
        sink.close()
    assert tracker.steps == [1, 4]
    assert tracker.warnings == ["look"]
    assert tracker.num_closed == 1
    first, last = caplog.messages
    assert first.startswith("there failed at step 2 and the run goes on without: no space left on device")
    assert last == "there failed 3 times; metrics.jsonl has every value"


def test_a_sample_of_episodes_comes_every_so_many_steps() -> None:
    tracker = Recorder()
    sink = guarded(tracker, every=2)
    episodes = [make_episode(episode_id=f"ep{number}", reward=number / 10) for number in range(5)]
    for step in range(5):
        sink.write(step, {}, episodes if step else ())
    assert tracker.shown[1] == tracker.shown[3] == []
    assert tracker.shown[2] == tracker.shown[4] == ["ep4", "ep0"]  # the best and the worst; two were asked for


def test_no_step_is_sent_twice_over_kills_and_resumes(tmp_path: Path) -> None:
    tracker, path = Recorder(), tmp_path / "trackers/there.json"
    first = Ledger(path, "mine", is_new=True)
    for step in range(6):
        guarded(tracker, first).write(step, {})
    again = Ledger(path, "mine", is_new=False)  # killed after step 5, goes on from the checkpoint of step 3
    for step in range(4, 9):
        guarded(tracker, again).write(step, {})
    assert again.run_id == first.run_id
    assert first.run_id.startswith("mine-")
    assert tracker.steps == list(range(9))


def test_a_run_from_the_beginning_has_another_id_there(tmp_path: Path) -> None:
    path = tmp_path / "there.json"
    first = Ledger(path, "mine", is_new=True)
    assert first.take(7)
    new = Ledger(path, "mine", is_new=True)
    assert new.run_id != first.run_id
    assert new.take(0)


def test_a_damaged_ledger_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{")
    with pytest.raises(RecordError, match="remove it to track the run under a new id"):
        Ledger(tmp_path / "there.json", "mine", is_new=False)
