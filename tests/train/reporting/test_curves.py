"""`srpo_train.reporting.curves`: what is drawn is computed right; that it is drawn is tested with the report."""

from __future__ import annotations

from srpo_train.reporting.curves import time_shares


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
