"""The file an evaluation leaves behind."""

from __future__ import annotations

import dataclasses
import json

import pytest

from srpo_envs.errors import RecordError, SchemaVersionError
from srpo_train.evaluation import BenchmarkResult, Results, SeedResult, TaskResult, read_results, write_results

RESULTS = Results(
    method="SRPO",
    model="builtin:tiny-team",
    source="runs/demo",
    samples=2,
    budget={"team_tokens": 512},
    benchmarks={
        "aime24": BenchmarkResult(
            env_id="srpo_envs/MathSingleAgent-v0",
            num_tasks=1,
            set_size=30,
            expected_tasks=30,
            digest="ab12",
            seeds={
                0: SeedResult(
                    avg_at_k=0.5,
                    pass_at_k=1.0,
                    num_samples=2,
                    num_failed=0,
                    costs={"tokens_per_query": 12.0},
                    metrics={"valid_rate/solver": 1.0},
                    per_task=(TaskResult(task_id="aime24/1", num_correct=1, num_samples=2, num_tokens=24),),
                ),
                7: SeedResult(avg_at_k=None, pass_at_k=None, num_samples=0, num_failed=2, costs={}, per_task=()),
            },
        )
    },
)


def test_what_is_written_is_read(tmp_path):
    write_results(tmp_path, RESULTS)
    assert read_results(tmp_path) == RESULTS
    assert read_results(tmp_path / "results.json") == RESULTS
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_the_file_keeps_its_documented_layout(tmp_path):
    write_results(tmp_path, RESULTS)
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["schema"] == 1
    assert content["benchmarks"]["aime24"]["seeds"]["0"]["per_task"] == [
        {"task_id": "aime24/1", "num_correct": 1, "num_samples": 2, "num_tokens": 24}
    ]
    assert content["benchmarks"]["aime24"]["seeds"]["7"]["avg_at_k"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not the results of an evaluation"),
        ('{"method": "SRPO", "model": "m", "source": "s", "samples": "many"}', "samples: Input should be a valid int"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(tmp_path, text, message):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(RecordError, match=message):
        read_results(tmp_path)


def test_a_directory_without_results_is_told(tmp_path):
    with pytest.raises(RecordError, match="is it the directory of an evaluation"):
        read_results(tmp_path)


def test_a_newer_file_is_refused(tmp_path):
    write_results(tmp_path, dataclasses.replace(RESULTS, schema=2))
    with pytest.raises(SchemaVersionError, match="written with schema 2"):
        read_results(tmp_path)
