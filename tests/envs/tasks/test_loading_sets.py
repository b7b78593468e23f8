"""Loading a published set: rows, ids, duplicates and parts, whatever the family and the order of the file."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import DatasetError, UnreadableGoldError
from srpo_envs.tasks import loading
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.loading import Choice, LoadedTasks, PublishedSet
from srpo_envs.tasks.math_problems import MathProblems
from srpo_envs.tasks.question_answering import QuestionAnswering
from srpo_envs.tasks.rows import read_rows

SETS = {
    "named": PublishedSet(hub_id="owner/named", splits=("train", "test")),
    "parts": PublishedSet(shipped="parts_{split}.jsonl", splits=("train", "test")),
    "whole": PublishedSet(shipped="whole.jsonl"),
}
ROWS = [{"q": f"What is {n} plus {n}?", "a": str(2 * n)} for n in range(40)]


def read_task(row, spec: PublishedSet) -> Task:
    """Read a row of a made-up format."""
    if "q" not in row:
        raise DatasetError("no q")
    if not row["a"]:
        raise UnreadableGoldError("no a")
    return Task("", row["q"], row["a"], {"hub": spec.hub_id})


def load_set(**choice) -> LoadedTasks[PublishedSet]:
    return LoadedTasks("made-up", Choice(**choice), SETS, PublishedSet(), read_task)


def load(tmp_path, rows, **choice) -> LoadedTasks[PublishedSet]:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_set(dataset="custom", path=path, **choice)


def questions_of(tasks) -> list[str]:
    return [tasks.task(index).question for index in range(tasks.num_tasks)]


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    """Shipped files of the made-up sets, in place of the package's folder."""
    for name, rows in [("whole", ROWS), ("parts_train", ROWS[:30]), ("parts_test", ROWS[30:])]:
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(loading, "_read_shipped", lambda name, split: read_rows(tmp_path / name.format(split=split)))


# --- rows ---------------------------------------------------------------------------------------------------------


def test_a_task_carries_its_row_and_what_the_reader_gave(tmp_path):
    task = load(tmp_path, [ROWS[3]]).task(0)
    assert (task.question, task.gold, dict(task.info)) == ("What is 3 plus 3?", "6", {"hub": "", "row": 1})


def test_an_unusable_gold_names_file_row_and_remedy_and_can_be_skipped(tmp_path, caplog):
    rows = [ROWS[0], {"q": "Q?", "a": ""}, ROWS[1]]
    with pytest.raises(UnreadableGoldError, match=r"set\.jsonl, row 2: no a; mend .* skip_unreadable=True"):
        load(tmp_path, rows)
    with caplog.at_level(logging.WARNING):
        tasks = load(tmp_path, rows, skip_unreadable=True)
    assert [tasks.task(index).info["row"] for index in range(tasks.num_tasks)] == [1, 3]
    assert tasks.report.num_rows == 3
    assert tasks.report.skipped == (f"{tmp_path / 'set.jsonl'}, row 2: no a",)
    assert "1 rows skipped" in caplog.text


def test_a_damaged_row_is_never_skipped(tmp_path):
    with pytest.raises(DatasetError, match=r"set\.jsonl, row 2: no q\Z"):
        load(tmp_path, [ROWS[0], {"a": "1"}], skip_unreadable=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.jsonl", '{"q": "a", "a": "1"}\n{"prob', "line 2: not JSON"),
        ("set.jsonl", "[1]\n", "line 1: expected an object, got list"),
        ("set.json", '[{"q": "a"', "not JSON"),
        ("set.json", "3", "expected a list of objects, got int"),
        ("set.json", '{"a": [], "b": []}', "expected a list of objects, got dict"),
        ("set.csv", "a,b", r"unknown format '\.csv'; expected one of \.json, \.jsonl, \.parquet"),
        ("set.jsonl.gz", "not gzip", "cannot be read"),
        ("set.jsonl", "", "no task left of 0 rows"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DatasetError, match=message):
        load_set(dataset="custom", path=str(tmp_path / name))


def test_a_damaged_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "set.parquet").write_text("PAR0")
    with pytest.raises(DatasetError, match=r"set\.parquet.*not a Parquet file"):
        load_set(dataset="custom", path=tmp_path / "set.parquet")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match="no data file at"):
        load_set(dataset="named", path=str(tmp_path / "none.jsonl"))


# --- ids, duplicates and parts ------------------------------------------------------------------------------------


def test_task_ids_do_not_depend_on_the_place_in_the_file(tmp_path):
    forward, backward = load(tmp_path, ROWS), load(tmp_path, ROWS[::-1])
    by_question = {task.question: task.task_id for task in map(forward.task, range(40))}
    assert {task.question: task.task_id for task in map(backward.task, range(40))} == by_question
    assert len(set(by_question.values())) == 40
    assert forward.task(0).task_id == "custom/8415a962e16c"  # printf "What is 0 plus 0?" | b2sum -l 128


def test_repeated_questions_are_reported_and_can_be_dropped(tmp_path):
    rows = [ROWS[0], ROWS[1], {**ROWS[0], "q": "What is 0  plus 0?\n"}]
    kept = load(tmp_path, rows)
    first, third = kept.task(0).task_id, kept.task(2).task_id
    assert kept.report.duplicates == ((third, first),)
    assert third == f"{first}-2"
    dropped = load(tmp_path, rows, drop_duplicates=True)
    assert (dropped.num_tasks, len(dropped.report.duplicates)) == (2, 1)


def test_holdout_divides_a_file_into_disjoint_parts_that_do_not_move(tmp_path):
    train, test = (load(tmp_path, ROWS, split=split, holdout=0.25) for split in ("train", "test"))
    assert sorted(questions_of(train) + questions_of(test)) == sorted(row["q"] for row in ROWS)
    assert set(questions_of(train)).isdisjoint(questions_of(test))
    longer = load(tmp_path, [{"q": "New?", "a": "1"}, *ROWS[::-1]], split="test", holdout=0.25)
    assert set(questions_of(test)) == set(questions_of(longer)) - {"New?"}


def test_repeated_questions_fall_into_one_part(tmp_path):
    rows = [*ROWS, *({**row, "q": row["q"].replace(" ", "  ")} for row in ROWS)]
    train, test = (load(tmp_path, rows, split=split, holdout=0.5) for split in ("train", "test"))
    normal = [{" ".join(question.split()) for question in questions_of(part)} for part in (train, test)]
    assert normal[0].isdisjoint(normal[1])
    assert train.num_tasks + test.num_tasks == 80


def test_the_test_part_has_its_share():
    num_held_out = sum(loading._is_held_out(f"What is {n}?", 0.25) for n in range(4000))
    assert abs(num_held_out - 1000) < 137  # five standard deviations of a binomial


@given(st.text(), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_larger_holdout_only_adds_to_the_test_part(question, share, other):
    smaller, larger = sorted([share, other])
    assert loading._is_held_out(question, smaller) <= loading._is_held_out(question, larger)
    assert not loading._is_held_out(question, 0.0)


def test_size_takes_the_first_tasks(tmp_path):
    assert questions_of(load(tmp_path, ROWS, size=3)) == [row["q"] for row in ROWS[:3]]


# --- sets that come with the package ------------------------------------------------------------------------------


@pytest.mark.usefixtures("shipped")
def test_a_shipped_set_has_its_own_parts_and_the_first_is_the_default():
    train, test = (load_set(dataset="parts", split=split) for split in (None, "test"))
    assert (train.num_tasks, test.num_tasks) == (30, 10)
    assert set(questions_of(train)).isdisjoint(questions_of(test))
    assert (train.name, test.name) == ("made-up-parts", "made-up-parts-test")
    assert load_set(dataset="whole").num_tasks == 40


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"split": "dev"}, "'parts' has the splits train and test, not 'dev'$"),
        ({"split": "test", "holdout": 0.1}, "'parts' has parts of its own, train and test: leave out holdout="),
        ({"path": "x.jsonl"}, "a path needs the name of the set it holds"),
    ],
)
def test_what_would_mix_the_parts_of_a_shipped_set_is_refused(choice, message):
    with pytest.raises(ValueError, match=message):
        load_set(dataset="parts", **choice)


# --- one file for many environments -------------------------------------------------------------------------------


def test_environments_of_one_choice_share_their_tasks_and_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"problem": "1+1?", "answer": "2"}\n')
    first, second = (MathProblems("custom", path=path) for _ in range(2))
    assert first.task(0) is second.task(0)
    path.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "1+2?", "answer": "3"}\n')
    assert (first.num_tasks, MathProblems("custom", path=path).num_tasks) == (1, 2)


def test_a_set_is_not_taken_for_another_of_the_same_file(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2", "final_answer": "3"}\n')
    assert MathProblems("aime25", path=path).task(0).gold == "2"
    assert MathProblems("olympiadbench", path=path).task(0).gold == "3"
    assert QuestionAnswering("custom", path=path).task(0).gold == ("2",)
