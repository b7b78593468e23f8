"""`srpo_train.reporting.traces`: quantities and statistics of runs, derived by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from report_world import make_run

from srpo_envs.errors import ConfigError, RecordError
from srpo_train.reporting.traces import read_traces, statistics_of, variation

STEPS = (
    {"train/grad_norm": 1.0, "rollout/reward_mean": 0.1, "rollout/event_completeness": 1.0},
    {
        "train/grad_norm": 2.0,
        "rollout/num_tokens": 300.0,
        "rollout/num_events": 30.0,
        "rollout/event_completeness": 0.5,
    },
    {"train/grad_norm": 3.0, "rollout/num_calls": 25.0, "rollout/reward_mean": 0.9},
)


def test_a_step_has_its_quantities_and_where_it_stands(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=STEPS, evaluations={0: (0.25, 0.5), 3: (0.75, 1.0)})
    (trace,) = read_traces([run])["Setwise SRPO"]
    before, first, second, third = trace.points
    assert (before.step, before.tokens, before.validation, before.score) == (0, 0.0, 0.25, None)
    # 200 tokens, 20 calls, 10 events: T = 10, K = 2, K T = 20
    assert (first.response_length, first.active_set, first.cost_proxy) == (10.0, 2.0, 20.0)
    # 300 tokens, 20 calls, 30 events: T = 15, K = 2/3, K T = 10
    assert (second.response_length, second.cost_proxy) == (15.0, 10.0)
    assert second.active_set == pytest.approx(2 / 3)
    assert [point.tokens for point in trace.points] == [0.0, 200.0, 500.0, 700.0]
    assert [point.time_s for point in trace.points] == [0.0, 30.0, 60.0, 90.0]
    assert (third.validation, third.variance) == (0.75, {})


def test_statistics_are_those_of_the_paper(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=STEPS, evaluations={0: (0.25, 0.5), 3: (0.75, 1.0)})
    (trace,) = read_traces([run])["Setwise SRPO"]
    found = statistics_of(trace, "mine")
    assert found.run == "mine"
    assert (found.grad_norm_mean, found.grad_norm_min, found.grad_norm_max) == (2.0, 1.0, 3.0)
    assert found.grad_norm_cv == pytest.approx(0.5)  # sample deviation of 1, 2, 3 is 1
    assert (found.active_set_first, found.active_set_last) == (2.0, 2.5)
    assert (found.proxy_first, found.proxy_last) == (20.0, 20.0)
    assert found.event_completeness == pytest.approx((10 + 15 + 10) / 50)  # weighted by events
    assert found.last_score == pytest.approx((0.1 + 0.5 + 0.9) / 3)
    assert found.best_avg_at_k == 75.0


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_skipped_step_has_no_part_in_the_variation_of_the_gradient(tmp_path: Path, norm: float) -> None:
    steps = [{"train/grad_norm": value} for value in (1.0, norm, 2.0, 3.0)]
    (trace,) = read_traces([make_run(tmp_path / "a", steps=steps)])["Setwise SRPO"]
    found = statistics_of(trace, "mine")
    assert (found.grad_norm_mean, found.grad_norm_max) == (2.0, 3.0)
    assert found.grad_norm_cv == pytest.approx(0.5)
    assert variation([norm, 1.0]) is None


def test_variance_is_kept_by_cardinality(tmp_path: Path) -> None:
    values = {"train/log_ratio_var/k1": 0.1, "train/log_ratio_var/k3": 0.3, "train/log_ratio_cov/k3": -0.1}
    (trace,) = read_traces([make_run(tmp_path / "a", steps=({}, values))])["Setwise SRPO"]
    assert trace.points[1].variance == {1: 0.1, 3: 0.3}
    assert trace.points[1].covariance == {3: -0.1}
    assert trace.largest_set == 3


def test_the_coefficient_of_variation_needs_two_values_and_a_mean() -> None:
    assert variation([4.0]) is None
    assert variation([-1.0, 1.0]) is None
    assert variation([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)


def test_seeds_are_one_method_and_the_same_seed_twice_is_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", f"seed={seed}") for seed in (0, 1)]
    other = make_run(tmp_path / "b", "objective.preset=dr_mas")
    assert {name: len(found) for name, found in read_traces([*runs, other]).items()} == {
        "Setwise SRPO": 2,
        "LLM sharing Dr. MAS": 1,
    }
    assert list(read_traces([tmp_path])) == ["Setwise SRPO", "LLM sharing Dr. MAS"]
    with pytest.raises(ConfigError, match=r"both are seed 0 of Setwise SRPO; leave one out"):
        read_traces([runs[0], make_run(tmp_path / "copy")])
    named = read_traces([runs[0], tmp_path / "copy"], {tmp_path / "copy": "again"})
    assert list(named) == ["Setwise SRPO", "again"]


def test_a_run_without_a_training_step_has_nothing_to_draw(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=(), evaluations={0: (0.1, 0.2)})
    with pytest.raises(RecordError, match="no training step to draw yet; train first"):
        read_traces([run])
