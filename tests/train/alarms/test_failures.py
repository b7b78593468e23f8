"""Quiet failures of a step are said, once while they last."""

from __future__ import annotations

import math

import pytest

from srpo_train.alarms import Alarms, AlarmsConfig

HEALTHY = {
    "rollout/reward_mean": 0.5,
    "rollout/reward_std": 0.5,
    "rollout/valid_rate/solver": 0.9,
    "train/engine_gap": 1e-5,
    "train/engine_clip_share": 0.05,
    "train/num_events": 8.0,
    "train/num_zero_advantage_events": 7.0,
    "train/num_nonfinite_steps": 0,
    "train/first_clip_fraction": 0.0,
}


def test_a_healthy_step_gives_no_warning() -> None:
    assert Alarms(AlarmsConfig()).check(HEALTHY) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rollout/reward_std": 0.0, "rollout/reward_mean": 0.0}, "every episode of the step has reward 0"),
        (
            {"rollout/reward_std": 0.0, "rollout/reward_mean": 1.0, "rollout/accuracy": 1.0},
            "every episode of the step is right",
        ),
        ({"train/num_events": 8.0, "train/num_zero_advantage_events": 8.0}, "every advantage of the step is 0"),
        ({"rollout/valid_rate/solver": 0.0}, "no response of role 'solver' could be parsed"),
        ({"train/engine_gap": 0.2}, "disagree by 0.2 nats a token"),
        ({"train/engine_gap": math.nan}, "disagree by nan nats a token"),
        ({"train/engine_clip_share": 0.07}, "lies outside the clip for 7.0% of the units (bound 5%)"),
        ({"train/num_nonfinite_steps": 1}, "not finite"),
        ({"train/first_clip_fraction": 0.01}, "clipped at the first update"),
    ],
)
def test_a_quiet_failure_is_said_once_while_it_lasts(changed: dict[str, float], said: str) -> None:
    alarms = Alarms(AlarmsConfig())
    (alarm,) = alarms.check(HEALTHY | changed)
    assert said in alarm.message
    assert alarms.check(HEALTHY | changed) == []
    assert alarms.check(HEALTHY) == []
    assert len(alarms.check(HEALTHY | changed)) == 1
