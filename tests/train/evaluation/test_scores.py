"""Scores against numbers worked out by hand, and against what must hold for any counts."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srpo_train.evaluation import BenchmarkResult, Results, SeedResult, TaskResult, scores


def tasks(*counts: tuple[int, int]) -> list[TaskResult]:
    return [TaskResult(task_id=f"t{i}", num_correct=c, num_samples=n, num_tokens=0) for i, (c, n) in enumerate(counts)]


def results(**benchmarks: dict[int, float | None]) -> Results:
    """Results with nothing but an Avg@k for each benchmark and seed."""

    def seed_result(value: float | None) -> SeedResult:
        return SeedResult(avg_at_k=value, pass_at_k=value, num_samples=0, num_failed=0, costs={}, per_task=())

    return Results(
        method="m",
        model="m",
        source="m",
        samples=1,
        benchmarks={
            name: BenchmarkResult(
                env_id="e",
                num_tasks=1,
                set_size=1,
                expected_tasks=None,
                digest="",
                seeds={seed: seed_result(value) for seed, value in column.items()},
            )
            for name, column in benchmarks.items()
        },
    )


# --- Avg@k and Pass@k ---------------------------------------------------------------------------------------------


def test_avg_at_k_weighs_queries_alike() -> None:
    # (3/4 + 0/4 + 1/1) / 3: the query that lost three samples weighs as much as the others.
    assert scores.avg_at_k(tasks((3, 4), (0, 4), (1, 1))) == pytest.approx(7 / 12, abs=0)
    assert scores.avg_at_k([]) is None


def test_share_solved_is_pass_at_k_of_the_paper() -> None:
    assert scores.share_solved(tasks((3, 4), (0, 4), (1, 4), (4, 4))) == 0.75
    assert scores.share_solved([]) is None


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 2, 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (5, 2, 3, 0.9),  # 1 - C(3,3)/C(5,3) = 1 - 1/10
        (16, 3, 8, 0.9),  # 1 - C(13,8)/C(16,8) = 1 - 1287/12870
        (16, 3, 1, 3 / 16),
        (7, 0, 3, 0.0),
        (7, 5, 3, 1.0),
    ],
)
def test_the_unbiased_estimate(n, c, k, expected) -> None:
    assert scores.pass_probability(n, c, k) == pytest.approx(expected, rel=1e-14)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_the_estimate_is_what_enumerating_all_draws_gives(numbers) -> None:
    n, c, k = numbers
    outcomes = [1] * c + [0] * (n - c)
    draws = list(itertools.combinations(outcomes, k))
    assert scores.pass_probability(n, c, k) == pytest.approx(sum(map(max, draws)) / len(draws), abs=1e-12)


def test_the_estimate_stays_exact_for_many_samples() -> None:
    exact = 1 - math.comb(9_990, 1_000) / math.comb(10_000, 1_000)
    assert scores.pass_probability(10_000, 10, 1_000) == pytest.approx(exact, rel=1e-12)


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_more_draws_never_solve_less_and_the_ends_are_avg_and_solved(numbers) -> None:
    n, c = numbers
    curve = [scores.pass_at_k(tasks((c, n)), k) for k in range(1, n + 1)]
    assert curve == sorted(curve)
    assert curve[0] == pytest.approx(scores.avg_at_k(tasks((c, n))))
    assert curve[-1] == scores.share_solved(tasks((c, n)))


def test_queries_with_too_few_samples_are_not_counted_for_pass_at_k() -> None:
    assert scores.pass_at_k(tasks((1, 4), (1, 1)), 2) == pytest.approx(0.5)
    assert scores.pass_at_k(tasks((1, 1)), 2) is None


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_impossible_counts_are_refused(n, c, k) -> None:
    with pytest.raises(ValueError, match="expected 0 <= num_correct"):
        scores.pass_probability(n, c, k)


# --- seeds and macro averages -------------------------------------------------------------------------------------


def test_spread_is_the_sample_standard_deviation() -> None:
    # Mean 0.6; deviations -0.1, 0, 0.1; sqrt(0.02 / 2) = 0.1, where the population's would be 0.0816.
    found = scores.spread([0.5, 0.6, 0.7])
    assert found.mean == pytest.approx(0.6)
    assert found.std == pytest.approx(0.1)
    assert found.num_runs == 3


def test_a_single_run_has_no_uncertainty_and_none_has_nothing() -> None:
    assert scores.spread([0.5]) == scores.Spread(0.5, None, 1)
    assert scores.spread([]) is None


def test_macro_averages_are_made_for_each_seed_first() -> None:
    # Seed 0: (0.2 + 0.6) / 2, seed 1: (0.4 + 0.8) / 2; seed 2 lacks a benchmark and seed 3 a score.
    found = scores.macro_by_seed(
        results(small={0: 0.2, 1: 0.4, 2: 0.9, 3: 1.0}, large={0: 0.6, 1: 0.8, 3: None}), scores.AVG_AT_K
    )
    assert found == {0: pytest.approx(0.4), 1: pytest.approx(0.6)}
    assert scores.spread(list(found.values())).std == pytest.approx(math.sqrt(0.02))


def test_macro_of_nothing_is_nothing() -> None:
    assert scores.macro_by_seed(results(), scores.AVG_AT_K) == {}


# --- intervals ----------------------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_near_the_normal_one() -> None:
    values = [1.0] * 30 + [0.0] * 70
    found = scores.interval([values])
    half = 1.96 * math.sqrt(0.3 * 0.7 / 100)
    assert found.low == pytest.approx(0.3 - half, abs=0.015)
    assert found.high == pytest.approx(0.3 + half, abs=0.015)
    assert found == scores.interval([values])


def test_the_interval_of_a_macro_average_weighs_benchmarks_alike() -> None:
    # The variance of the mean of two independent means: (0.25/25 + 0.25/2500) / 4.
    found = scores.interval([[0.0, 1.0] * 12 + [0.5], [0.0, 1.0] * 1250])
    half = 1.96 * math.sqrt((0.24 / 25 + 0.25 / 2500) / 4)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)


def test_equal_values_leave_no_room_and_one_query_has_no_interval() -> None:
    assert scores.interval([[0.5] * 4]) == scores.Interval(0.5, 0.5)
    assert scores.interval([[0.5]]) is None
    assert scores.interval([[0.1, 0.2], [0.5]]) is None
    assert scores.interval([]) is None


@settings(max_examples=20)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_an_interval_lies_within_the_values(values) -> None:
    found = scores.interval([values], num_resamples=200)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9


# --- paired tests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0] * 5, 2 / 32),  # only all + and all - are as far out
        ([1.0, 1.0, 1.0, -1.0], 10 / 16),  # |sum| >= 2: five assignments on each side
        ([0.5, -0.5, 0.0], 1.0),
        ([0.0, 0.0], 1.0),
        ([], 1.0),
    ],
)
def test_sign_flips_of_few_differences_are_exact(differences, expected) -> None:
    assert scores.sign_flip_p_value(differences) == pytest.approx(expected)


def test_sign_flips_of_many_differences_come_near_the_exact_ones() -> None:
    # 40 equal differences, 28 one way: the binomial's two-sided tail.
    exact = 2 * sum(math.comb(40, i) for i in range(13)) / 2**40
    assert scores.sign_flip_p_value([1.0] * 28 + [-1.0] * 12) == pytest.approx(exact, abs=0.005)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), max_size=20))
def test_sign_flips_do_not_mind_which_method_comes_first(differences) -> None:
    forward = scores.sign_flip_p_value(differences, num_resamples=500)
    assert 0 < forward <= 1
    assert forward == scores.sign_flip_p_value([-value for value in differences], num_resamples=500)


def test_sign_flips_hold_their_level() -> None:
    rng = np.random.default_rng(0)
    p_values = [scores.sign_flip_p_value(rng.normal(size=10)) for _ in range(300)]
    assert np.mean(np.array(p_values) <= 0.1) == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize(
    ("only_first", "only_second", "expected"),
    [
        (0, 5, 2 / 32),
        (1, 5, 2 * 7 / 64),  # 2 * (C(6,0) + C(6,1)) / 2^6
        (3, 3, 1.0),
        (0, 0, 1.0),
    ],
)
def test_mcnemar_is_the_exact_binomial(only_first, only_second, expected) -> None:
    assert scores.mcnemar_p_value(only_first, only_second) == pytest.approx(expected)
    assert scores.mcnemar_p_value(only_second, only_first) == pytest.approx(expected)


def test_mcnemar_of_many_discordant_queries_is_near_the_normal_tail() -> None:
    # 5,000 that differ, 2,600 one way: z = 99.5 / sqrt(1250) with the continuity correction.
    z = (100 - 0.5) / math.sqrt(1250)
    expected = 2 * (1 - statistics.NormalDist().cdf(z))
    assert scores.mcnemar_p_value(2400, 2600) == pytest.approx(expected, rel=0.01)


def test_mcnemar_refuses_negative_counts() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        scores.mcnemar_p_value(-1, 2)
