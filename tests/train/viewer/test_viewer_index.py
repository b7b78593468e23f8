"""The index beside a log: complete, incremental, never ahead of what is on disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from viewer_world import LONG_LINE, hostile_episode, lines_of, make_viewed_run, step_episodes, write_step

from srpo_envs.errors import RecordError, UnknownIdError
from srpo_envs.records import read_episodes
from srpo_train.viewer.index import INDEX_FILE, EpisodeIndex
from srpo_train.viewer.marks import Mark
from srpo_train.viewer.search import Query, find, label_counts


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_viewed_run(tmp_path / "run")


def ids(index: EpisodeIndex) -> list[str]:
    return [row["episode_id"] for row in find(index, Query(), sort="oldest", limit=500).rows]


def test_every_episode_is_indexed_and_read_back_from_the_log(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    progress = index.update()
    stored = [episode for path in sorted((run_dir / "events").iterdir()) for episode in read_episodes(path)]
    assert (progress.num_episodes, progress.num_damaged) == (12, 0)
    assert progress.num_bytes == progress.total_bytes == sum(p.stat().st_size for p in (run_dir / "events").iterdir())
    assert ids(index) == [episode.episode_id for episode in stored]
    assert [index.read(episode.episode_id) for episode in stored] == stored
    assert index.episodes_of("events/step-000002.jsonl") == stored[4:8]


def test_a_row_says_what_its_episode_says(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    index.update()
    row = find(index, Query()).rows[0]
    assert row["file"] == "events/step-000003.jsonl"
    wanted = {
        "episode_id": "step3/p1/g1",
        "step": 3,
        "reward": 0.0,
        "penalty": 0.1,
        "correct": 0,
        "events": 2,
        "calls": 4,
    }
    wanted |= {
        "malformed": 1,
        "tokens": 12,
        "tools": 1,
        "k": 3,
        "version": 2,
        "question": "Compute 1+3.",
        "answer": "?",
    }
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    labels = label_counts(index)
    assert labels["k"] == [("1", 12), ("3", 12)] and labels["reason"] == [("no verdict tag", 3)]
    assert labels["role"] == [("solver", 12), ("verifier", 12)] and labels["tool"] == [("search", 12)]


def test_the_index_lies_beside_the_log_and_is_opened_again_without_reading_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EpisodeIndex(run_dir).update()
    assert (run_dir / INDEX_FILE).is_file()
    monkeypatch.setattr("srpo_train.viewer.index.scan", lambda *_: pytest.fail("read again"))
    index = EpisodeIndex(run_dir)
    assert index.progress.num_episodes == index.update().num_episodes == 12


def test_the_index_of_a_read_only_run_goes_to_the_cache(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    index = EpisodeIndex(run_dir)
    assert index.path.is_relative_to(tmp_path / "cache/srpo/view")
    assert index.update().num_episodes == 12


def test_a_new_step_joins_and_a_removed_one_goes(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    index.update()
    write_step(run_dir, 4, step_episodes(4))
    assert index.update().num_episodes == 16
    (run_dir / "events/step-000001.jsonl").unlink()  # as with log.save_events = "last"
    assert index.update().num_episodes == 12
    assert ids(index)[0] == "step2/p0/g0" and ids(index)[-1] == "step4/p1/g1"


def test_a_step_that_a_resumed_run_wrote_anew_replaces_the_old_one(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    index.update()
    write_step(run_dir, 3, step_episodes(3, num_tasks=1))
    assert index.update().num_episodes == 10
    assert [name for name in ids(index) if name.startswith("step3")] == ["step3/p0/g0", "step3/p0/g1"]
    assert (
        len(find(index, Query(conditions=("e.id IN (SELECT rowid FROM words WHERE words MATCH 'compute')",))).rows)
        == 10
    )


def test_a_torn_last_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "evaluation/math/seed-0/samples.jsonl"
    log.parent.mkdir(parents=True)
    first, second = map(lines_of, step_episodes(1, num_tasks=1))
    index = EpisodeIndex(tmp_path / "evaluation")
    for cut in (1, len(second) // 2, len(second) - 1):
        log.write_text(first + second[:cut])
        assert index.update().num_episodes == 1
    with log.open("a") as file:
        file.write(second[-1])
    progress = index.update()
    assert (progress.num_episodes, progress.num_damaged) == (2, 0)
    assert index.read("step1/p0/g1").episode_id == "step1/p0/g1"


def test_a_growing_log_is_read_on_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "math/seed-0/samples.jsonl"
    log.parent.mkdir(parents=True)
    first, second = map(lines_of, step_episodes(1, num_tasks=1))
    log.write_text(first)
    index = EpisodeIndex(tmp_path)
    index.update()
    starts: list[int] = []
    from srpo_train.viewer.scan import scan

    monkeypatch.setattr("srpo_train.viewer.index.scan", lambda path, start: starts.append(start) or scan(path, start))
    with log.open("a") as file:
        file.write(second)
    assert index.update().num_episodes == 2
    assert starts == [len(first.encode())]


def test_damage_is_passed_over_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "events/step-000001.jsonl"
    log.parent.mkdir(parents=True)
    first, second, third = map(lines_of, step_episodes(1, num_tasks=2)[:3])
    head = second.splitlines(keepends=True)[0]
    broken = second.replace('"members":[', '"members":5,"x":[', 1)
    newer = second.replace('"schema":1', '"schema":99')
    nested = "[" * 100_000 + "\n"
    log.write_text(first + "not json\n" + nested + head + broken + newer + third)
    index = EpisodeIndex(tmp_path)
    progress = index.update()
    assert ids(index) == ["step1/p0/g0", "step1/p1/g0"]
    assert progress.num_damaged >= 4 and progress.num_bytes == progress.total_bytes


def test_a_damaged_index_is_made_anew(run_dir: Path) -> None:
    EpisodeIndex(run_dir).update()
    (run_dir / INDEX_FILE).write_bytes(b"not a database" * 1000)
    for suffix in ("-wal", "-shm"):
        (run_dir / f"{INDEX_FILE}{suffix}").unlink(missing_ok=True)
    assert EpisodeIndex(run_dir).update().num_episodes == 12


def test_a_link_out_of_the_run_is_not_followed(run_dir: Path, tmp_path: Path) -> None:
    outside = write_step(tmp_path / "elsewhere", 9, step_episodes(9))
    (run_dir / "events/step-000009.jsonl").symlink_to(outside)
    index = EpisodeIndex(run_dir)
    assert index.update().num_episodes == 12
    with pytest.raises(UnknownIdError, match="step9/p0/g0"):
        index.read("step9/p0/g0")


def test_a_log_that_lost_an_indexed_episode_says_so(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    index.update()
    (run_dir / "events/step-000001.jsonl").unlink()
    with pytest.raises(RecordError, match="no longer holds"):
        index.read("step1/p0/g0")


def test_megabyte_lines_do_not_become_a_megabyte_of_index(tmp_path: Path) -> None:
    write_step(tmp_path, 9, [hostile_episode()])
    index = EpisodeIndex(tmp_path)
    index.update()
    assert index.read("step9/p0/g0").events[0].members[1].text == LONG_LINE
    assert sum(path.stat().st_size for path in index.path.parent.iterdir()) < 600_000


def test_a_mark_knows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("abc\n")
    mark = Mark.at(path, 4)
    with path.open("a") as file:
        file.write("def\n")
    assert mark.holds(path)
    path.write_text("abx\ndef\n")
    assert not mark.holds(path)
    path.write_text("ab")
    assert not mark.holds(path)


def delete_file(index: EpisodeIndex) -> None:
    index.path.unlink()


def delete_folder(index: EpisodeIndex) -> None:
    shutil.rmtree(index.path.parent)


def empty(index: EpisodeIndex) -> None:
    index.path.write_bytes(b"")


def scribble(index: EpisodeIndex) -> None:
    index.path.write_bytes(b"no database " * 10_000)


def scribble_over_the_end(index: EpisodeIndex) -> None:
    """Pages of the episodes are spoilt, those that an update looks at first are not."""
    for suffix in ("-wal", "-shm"):
        index.path.with_name(index.path.name + suffix).unlink(missing_ok=True)
    whole = index.path.read_bytes()
    index.path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))


@pytest.mark.parametrize("harm", [delete_file, delete_folder, empty, scribble, scribble_over_the_end])
def test_an_index_that_is_lost_or_spoilt_meanwhile_is_made_anew(run_dir: Path, harm) -> None:
    index = EpisodeIndex(run_dir)
    index.update()
    before = ids(index)
    harm(index)
    with pytest.raises(RecordError, match="made anew from the log, ask again soon"):
        ids(index)
    assert not index.is_sound
    write_step(run_dir, 4, step_episodes(4))
    assert index.update().num_episodes == 16
    assert index.is_sound and ids(index)[:12] == before
    assert index.read("step4/p0/g0").episode_id == "step4/p0/g0"


def test_asking_makes_no_index(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    index.path.unlink()
    with pytest.raises(RecordError), index.reading():
        pass
    assert not index.path.exists()


def test_the_directory_of_a_run_that_was_deleted_does_not_come_back(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    shutil.rmtree(run_dir)
    with pytest.raises(RecordError, match="deleted or moved"):
        index.update()
    with pytest.raises(RecordError, match="deleted or moved"):
        EpisodeIndex(run_dir)
    assert not run_dir.exists()


def test_a_question_that_sqlite_cannot_take_is_no_damage(run_dir: Path) -> None:
    index = EpisodeIndex(run_dir)
    index.update()
    for wrong in ("SELECT nothing FROM episodes", "SELECT 1 WHERE " + " AND ".join("1" * 5000)):
        with pytest.raises(sqlite3.OperationalError), index.reading() as connection:
            connection.execute(wrong)
    assert index.is_sound
