"""The log of events holds every step once, whatever was there before."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_episode

from srpo_envs.records import read_episodes
from srpo_train.event_log import EventLog


def steps(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "events").iterdir())


def test_a_run_that_goes_on_forgets_the_steps_it_takes_again(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "all", done_steps=0)
    for step in (1, 2, 3):
        log.add(step, [make_episode(episode_id=f"step{step}/p0/g0")])
    (tmp_path / "events" / "step-000004.jsonl.partial").write_bytes(b"{")
    EventLog(tmp_path, "all", done_steps=2)
    assert steps(tmp_path) == ["step-000001.jsonl", "step-000002.jsonl"]
    (episode,) = read_episodes(tmp_path / "events" / "step-000002.jsonl")
    assert episode.episode_id == "step2/p0/g0"


@pytest.mark.parametrize(("kept", "expected"), [("all", [1, 2]), ("last", [2]), ("none", [])])
def test_what_is_kept(tmp_path: Path, kept: str, expected: list[int]) -> None:
    log = EventLog(tmp_path, kept, done_steps=0)  # type: ignore[arg-type]
    for step in (1, 2):
        log.add(step, [make_episode()])
    found = steps(tmp_path) if (tmp_path / "events").exists() else []
    assert found == [f"step-{step:06d}.jsonl" for step in expected]
