"""The samples of one benchmark under one seed, kept on disk as they come.

`samples.jsonl` holds the finished episodes, `failed.jsonl` a line for every sample that was lost or could not be
answered. Both only grow while an evaluation runs. A process that is killed leaves at most one unfinished episode at
the end of the file, which is cut when the next one goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srpo_envs.errors import RecordError
from srpo_envs.records import Episode, episode_to_lines, read_episodes
from srpo_envs.storing import append_whole, replace_whole, storing
from srpo_train.collect import FailedEpisode

SAMPLES_FILE = "samples.jsonl"
"""Finished episodes."""

FAILED_FILE = "failed.jsonl"
"""One line for each sample without an episode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedSample:
    """A sample without an episode, and why."""

    episode_id: str
    """Which sample."""
    task_id: str
    """Of which task."""
    reason: str
    """What went wrong, in one line."""
    is_wrong: bool
    """The team brought itself where none can answer, which counts as a wrong answer; otherwise the sample is lost to
    its surroundings, counts as nothing, and is tried again when the evaluation is continued."""


class SampleFiles:
    """The two files of a folder, opened to go on where they end.

    Args:
        folder: Made when missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        """Where they lie."""
        self._samples = folder / SAMPLES_FILE
        self._failed = folder / FAILED_FILE
        for path in (self._samples, self._failed):
            path.touch()
        cut_unfinished(self._samples)

    def episodes(self) -> Iterator[Episode]:
        """Yield the finished samples, one at a time.

        Raises:
            RecordError: the file is damaged somewhere before its end.
        """
        return read_episodes(self._samples)

    def take_failed(self) -> tuple[list[FailedSample], list[FailedSample]]:
        """Return the samples that are wrong and those that were lost, and forget the lost ones: they are to be tried.

        Raises:
            RecordError: a line other than the last is damaged.
        """
        found = _read_failed(self._failed)
        wrong = [sample for sample in found if sample.is_wrong]
        replace_whole(self._failed, (_failed_line(sample).encode() for sample in wrong))
        return wrong, [sample for sample in found if not sample.is_wrong]

    def add(self, episode: Episode) -> None:
        """Append a finished sample; nothing of it is lost once this returns, should the process be killed."""
        _append(self._samples, "".join(line + "\n" for line in episode_to_lines(episode)))

    def add_failed(self, sample: FailedSample) -> None:
        """Append a sample without an episode."""
        _append(self._failed, _failed_line(sample))


def failed_sample(failed: FailedEpisode, task_id: str) -> FailedSample:
    """Return what is kept of an episode that the collector dropped."""
    return FailedSample(
        episode_id=failed.job.episode_id, task_id=task_id, reason=failed.reason, is_wrong=failed.is_unanswerable
    )


def cut_unfinished(path: Path) -> None:
    """Cut off what a killed process left at the end: half a line, or an episode with fewer events than it announces."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        keep = size
        for num_after, (start, line) in enumerate(_lines_backward(file, size)):
            if not line.endswith(b"\n"):
                keep = start
                continue
            announced = _num_events(path, line)
            if announced is not None:
                if announced != num_after - (keep < size):
                    keep = start
                break
        if keep < size:
            file.truncate(keep)


def _num_events(path: Path, line: bytes) -> int | None:
    """The number of events that an episode's first line announces; None for the line of an event."""
    try:
        content = json.loads(line)
        return int(content["events"]) if content.get("kind") == "episode" else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"{path}: the last lines are not of an episode ({error!r}); the file is damaged") from error


def _lines_backward(file: Any, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield (where it starts, the line) from the last line to the first."""
    end = size
    while end > 0:
        start, step = end - 1, 1 << 16
        while start > 0:
            begin = max(start - step, 0)
            file.seek(begin)
            found = file.read(start - begin).rfind(b"\n")
            if found >= 0:
                start = begin + found + 1
                break
            start = begin
        file.seek(start)
        yield start, file.read(end - start)
        end = start


def _append(path: Path, text: str) -> None:
    with storing(path), path.open("ab", buffering=0) as file:
        append_whole(file, text.encode(), is_forced=False)


def _failed_line(sample: FailedSample) -> str:
    fields = {name: getattr(sample, name) for name in FailedSample.__slots__}
    return json.dumps({"schema": 1, **fields}) + "\n"


def _read_failed(path: Path) -> list[FailedSample]:
    """Read the file; a last line without its end was being written when the process was killed."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            fields = json.loads(line)
            fields.pop("schema")
            found.append(FailedSample(**fields))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(f"{path}:{number}: not a failed sample ({error}); the file is damaged") from error
    return found
