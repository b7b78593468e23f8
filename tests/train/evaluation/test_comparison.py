"""Two evaluations side by side: paired by query, refused where they do not pair."""

from __future__ import annotations

import dataclasses

import pytest

from srpo_envs.errors import ConfigError
from srpo_train.evaluation import BenchmarkResult, Results, SeedResult, TaskResult, compare


def seed_result(correct: dict[str, int], n: int = 4) -> SeedResult:
    tasks = tuple(TaskResult(task_id=name, num_correct=c, num_samples=n, num_tokens=0) for name, c in correct.items())
    return SeedResult(avg_at_k=None, pass_at_k=None, num_samples=0, num_failed=0, costs={}, per_task=tasks)


def results(*, digest: str = "d", samples: int = 4, **benchmarks: list[dict[str, int]]) -> Results:
    """Results whose benchmarks have one table of correct samples for each seed."""
    return Results(
        method="m",
        model="m",
        source="m",
        samples=samples,
        benchmarks={
            name: BenchmarkResult(
                env_id="e",
                num_tasks=len(seeds[0]),
                set_size=len(seeds[0]),
                expected_tasks=None,
                digest=digest,
                seeds={seed: seed_result(correct) for seed, correct in enumerate(seeds)},
            )
            for name, seeds in benchmarks.items()
        },
    )


def test_queries_are_paired_whatever_their_order() -> None:
    first = results(own=[{"a": 0, "b": 0, "c": 2, "d": 0, "e": 4, "f": 0}])
    second = results(own=[{"f": 4, "e": 4, "d": 2, "c": 2, "b": 1, "a": 1}])
    (found,) = compare(first, second)
    assert (found.name, found.num_queries, found.num_unpaired) == ("own", 6, 0)
    # Shares 6/24 and 14/24; four differences, all one way: two of sixteen assignments of signs are as far out.
    assert found.avg_at_k.first == pytest.approx(0.25)
    assert found.avg_at_k.difference == pytest.approx(8 / 24)
    assert (found.avg_at_k.test, found.avg_at_k.p_value) == ("sign flips", pytest.approx(2 / 16))
    assert found.avg_at_k.interval.low < 8 / 24 < found.avg_at_k.interval.high
    # Solved 2 and 6 of six: four only by the second, 2 * 1/16.
    assert found.pass_at_k.difference == pytest.approx(4 / 6)
    assert (found.pass_at_k.test, found.pass_at_k.p_value) == ("McNemar", pytest.approx(2 / 16))


def test_a_method_against_itself_differs_in_nothing() -> None:
    same = results(own=[{"a": 1, "b": 3}])
    (found,) = compare(same, same)
    for score in (found.avg_at_k, found.pass_at_k):
        assert (score.difference, score.p_value) == (0.0, 1.0)
        assert (score.interval.low, score.interval.high) == (0.0, 0.0)


def test_seeds_are_averaged_by_query_first() -> None:
    first = results(own=[{"a": 0, "b": 4}, {"a": 4, "b": 4}])
    second = results(own=[{"a": 4, "b": 4}])
    (found,) = compare(first, second)
    assert found.avg_at_k.first == pytest.approx(0.75)
    assert found.pass_at_k.test == "sign flips"


def test_the_macro_average_weighs_benchmarks_alike() -> None:
    first = results(small=[{"a": 0}], large=[{"b": 0, "c": 0, "d": 0}])
    second = results(large=[{"b": 0, "c": 0, "d": 0}], small=[{"a": 4}], third=[{"e": 4}])
    *_, macro = compare(first, second)
    assert (macro.name, macro.num_queries) == ("macro", 4)
    assert macro.avg_at_k.difference == pytest.approx(0.5)
    assert macro.avg_at_k.interval is None  # one query is not enough to draw from


def test_what_only_one_has_is_left_out_and_counted() -> None:
    (found,) = compare(results(own=[{"a": 4, "b": 0}]), results(own=[{"b": 4, "c": 4}]))
    assert (found.num_queries, found.num_unpaired, found.avg_at_k.difference) == (1, 2, 1.0)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (results(other=[{"a": 1}]), "nothing to compare: one has own, the other other"),
        (results(own=[{"a": 1}], samples=8), "one has 4 samples a task, the other 8"),
        (results(own=[{"a": 1}], digest="e"), "evaluated on other tasks .1 with digest d, 1 with digest e"),
        (results(own=[{"b": 1}]), "no query of which both have samples"),
    ],
)
def test_what_does_not_pair_is_refused(second, message) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(results(own=[{"a": 1}]), second)


def test_results_may_be_read_anew() -> None:
    # `compare` takes what `read_results` gives: frozen records, whose copies are equal.
    first = results(own=[{"a": 1, "b": 2}])
    assert compare(first, dataclasses.replace(first)) == compare(first, first)
