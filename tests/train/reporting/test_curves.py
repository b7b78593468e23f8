"""`srpo_train.reporting.curves`: what is drawn is computed right; that it is drawn is tested with the report."""

from __future__ import annotations

from srpo_train.reporting.curves import running_mean, time_shares


def test_a_running_mean_is_centred_and_keeps_the_ends() -> None:
    # window 3: the ends stand alone, the middle is (1 + 2 + 6) / 3 = 3 and (2 + 6 + 4) / 3 = 4
    assert running_mean([1.0, 2.0, 6.0, 4.0], window=3) == [1.0, 3.0, 4.0, 4.0]
    assert running_mean([0.0, 0.0, 9.0, 0.0, 0.0], window=3) == [0.0, 3.0, 3.0, 3.0, 0.0]
    assert running_mean([]) == []


def test_time_shares_sum_to_one_even_when_the_clock_of_the_parts_exceeds_that_of_the_step() -> None:
    lines = [
        {"step": 0, "time/eval_s": 3.0},
        {"step": 1, "time/generate_s": 1.0, "time/env_s": 1.0, "time/update_s": 1.0, "time/step_s": 4.0},
        {"step": 2, "time/generate_s": 2.0, "time/env_s": 1.0, "time/update_s": 1.0, "time/step_s": 3.0},
    ]
    steps, shares = time_shares(lines)
    assert steps == [1, 2]
    assert shares["generation"] == [0.25, 0.5]
    assert shares["other"] == [0.25, 0.0]
