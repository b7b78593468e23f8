"""Asking for episodes in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewer_world import make_viewed_run, step_episodes, write_step

from srpo_envs.errors import ConfigError, SrpoError
from srpo_train.viewer.index import EpisodeIndex
from srpo_train.viewer.search import find, parse_query, task_ids


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> EpisodeIndex:
    """Three steps of two tasks, two rollouts each; in each step one of the four is malformed, and two are right."""
    index = EpisodeIndex(make_viewed_run(tmp_path_factory.mktemp("runs") / "run"))
    index.update()
    return index


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 12),
        ("is:malformed", 3),
        ("-is:malformed", 9),
        ("is:correct", 6),
        ("is:wrong is:malformed", 3),
        ("is:searched", 12),
        ("is:truncated", 0),
        ("reward<1", 6),
        ("reward>=1", 6),
        ("reward:0..0.5", 6),
        ("step:2", 4),
        ("step:2..3", 8),
        ("version:2", 4),
        ("version>=1", 8),
        ("k:3", 12),
        ("k:2", 0),
        ("k>=3", 12),
        ("role:verifier", 12),
        ("-role:verifier", 0),
        ("role:ver*", 12),
        ("type:verifier step:1", 4),
        ('reason:"no verdict tag"', 3),
        ("tool:search", 12),
        ("task:sum/1", 6),
        ("task:sum/*", 12),
        ("task:sum", 0),
        ("episode:step1/*", 4),
        ("file:events/step-000001.jsonl", 4),
        ("malformed>0", 3),
        ("tokens:12", 12),
        ("maybe", 3),
        ("-maybe", 9),
        ("comp", 12),
        ('"capital of Peru"', 12),
        ('"Peru capital"', 0),
        ("compute maybe step:1", 1),
        ("alarm:length", 4),
        ("alarm:any", 8),
        ("-alarm:any", 4),
        ("alarm:other", 0),
        ('"" -', 12),
    ],
)
def test_a_query_finds(index: EpisodeIndex, query: str, count: int) -> None:
    page = find(index, parse_query(query, {"length": [2], "entropy": [2, 3]}))
    assert page.total == len(page.rows) == count


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("rol:verifier", "no key 'rol'; did you mean 'role'"),
        ("is:good", "expected one of malformed, correct"),
        ("reward:high", "expected a number"),
        ("role>3", "role does not compare"),
    ],
)
def test_a_query_that_means_nothing_says_what_is_wrong(query: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_query(query)


def test_pages_follow_one_another_and_do_not_shift_while_the_log_grows(tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "run")
    index = EpisodeIndex(run_dir)
    index.update()
    whole = [row["episode_id"] for row in find(index, parse_query("")).rows]
    first = find(index, parse_query(""), limit=5)
    write_step(run_dir, 4, step_episodes(4))
    index.update()
    later = find(index, parse_query(""), offset=5, limit=50, newest=first.newest)
    assert [row["episode_id"] for row in (*first.rows, *later.rows)] == whole
    assert later.total == 12 and find(index, parse_query("")).total == 16


def test_orders(index: EpisodeIndex) -> None:
    def order(sort: str) -> list[str]:
        return [row["episode_id"] for row in find(index, parse_query(""), sort=sort).rows]

    assert order("newest") == order("oldest")[::-1]
    assert order("best")[0] == "step3/p1/g0" and order("worst")[0] == "step3/p1/g1"
    assert order("malformed")[:3] == ["step3/p1/g1", "step2/p1/g1", "step1/p1/g1"]
    with pytest.raises(ConfigError, match="expected one of newest"):
        find(index, parse_query(""), sort="id; DROP TABLE episodes")


def test_tasks_by_their_beginning(index: EpisodeIndex) -> None:
    assert task_ids(index, "sum") == ["sum/0", "sum/1"]
    assert task_ids(index, "other") == []


@given(st.text(max_size=60))
def test_no_text_breaks_the_index(index: EpisodeIndex, text: str) -> None:
    try:
        query = parse_query(text)
    except SrpoError:
        return
    assert 0 <= find(index, query, limit=1).total <= 12


@given(
    st.sampled_from(["", "role:", "task:", "reason:", "-"]), st.sampled_from("'\";)(*?[]^\\%_:-"), st.text(max_size=10)
)
def test_no_sign_of_sql_or_of_a_pattern_acts(index: EpisodeIndex, key: str, sign: str, text: str) -> None:
    try:
        query = parse_query(f"{key}{sign}{text}{sign}")
    except SrpoError:
        return
    find(index, query, limit=1)
    assert find(index, parse_query("")).total == 12
