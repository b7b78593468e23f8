"""Collapses are found in the history of a run, and only where the thresholds say so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from srpo_envs.errors import ConfigError
from srpo_train.alarms import Alarms, AlarmsConfig
from srpo_train.config import parse_recipe


def run(name: str, values: Sequence[float], **others: float | Sequence[float]) -> list[dict[str, float]]:
    """One line a step: the metric, and further ones that are constant or have a value for each step."""
    lines = [{"step": float(step), name: value} for step, value in enumerate(values)]
    for other, given in others.items():
        for index, line in enumerate(lines):
            line[other.replace("__", "/")] = given[index] if isinstance(given, Sequence) else given
    return lines


def raised(lines: Sequence[dict[str, float]], **settings: object) -> list[tuple[int, str, str]]:
    alarms = Alarms(AlarmsConfig.model_validate(settings))
    return [(int(line["step"]), alarm.name, alarm.subject) for line in lines for alarm in alarms.check(line)]


# --- validation cliff ---------------------------------------------------------------------------------------------


def test_a_fall_beyond_noise_is_a_cliff() -> None:
    # Two standard errors of 0.9 and 0.7 over 400 samples: sqrt(.09/400) = .015 and sqrt(.21/400) = .0229, together
    # .0274; three of them are .082, so the bound is the drop of 0.1 and 0.9 -> 0.7 is twice as far.
    assert raised(run("eval/avg_at_k", [0.3, 0.9, 0.7], eval__num_episodes=400)) == [(2, "validation_cliff", "")]


def test_the_same_fall_over_few_samples_is_noise() -> None:
    # Over 16 samples the errors are .075 and .115, together .137; three of them are .41.
    assert raised(run("eval/avg_at_k", [0.3, 0.9, 0.7], eval__num_episodes=16)) == []


def test_a_cliff_is_measured_from_the_best_evaluation_and_said_once_while_it_lasts() -> None:
    scores = [0.9, 0.85, 0.81, 0.7, 0.6, 0.9, 0.6]
    lines = run("eval/avg_at_k", scores, eval__num_episodes=10_000)
    assert [step for step, _, _ in raised(lines)] == [3, 6]


def test_steps_between_evaluations_neither_end_nor_repeat_a_cliff() -> None:
    lines = run("eval/avg_at_k", [0.9, 0.5], eval__num_episodes=1000)
    lines += [{"step": 2.0}, {"step": 3.0, "eval/avg_at_k": 0.5, "eval/num_episodes": 1000.0}]
    assert [step for step, _, _ in raised(lines)] == [1]


# --- amplification ------------------------------------------------------------------------------------------------


def amplified(norms: Sequence[float], perplexities: Sequence[float], alignment: float) -> list[dict[str, float]]:
    return run(
        "train/role_grad_norm/voter",
        norms,
        train__perplexity__voter=perplexities,
        train__member_grad_amplification__voter=alignment,
    )


def test_members_that_pull_together_while_norm_and_perplexity_jump_amplify_one_another() -> None:
    # Median of 1, 1, 2 is 1 and the norm is 3; the lowest perplexity is 2 and it is 2.07.
    assert raised(amplified([1, 1, 2, 3], [2.3, 2.1, 2.0, 2.07], 1.2)) == [(3, "amplification", "voter")]


@pytest.mark.parametrize(
    ("norms", "perplexities", "alignment"),
    [
        ([1, 1, 2, 2.99], [2.3, 2.1, 2.0, 2.07], 1.2),  # the gradient has grown less
        ([1, 1, 2, 3], [2.3, 2.1, 2.0, 2.05], 1.2),  # the role is still sure of itself
        ([1, 1, 2, 3], [2.3, 2.1, 2.0, 2.07], 1.19),  # its members do not agree
        ([1, 9], [1, 9], 2.0),  # nothing to compare with yet
    ],
)
def test_one_sign_alone_is_not_amplification(norms: list[float], perplexities: list[float], alignment: float) -> None:
    assert raised(amplified(norms, perplexities, alignment)) == []


# --- what is compared with the start of the run -------------------------------------------------------------------


def test_a_role_without_a_gradient_at_most_steps_has_none_to_outgrow() -> None:
    assert raised(amplified([0.0, 0.0, 0.0, 0.5], [1.0, 1.0, 1.0, 2.0], alignment=1.5)) == []


def test_a_role_that_writes_as_another_did_is_captured() -> None:
    # The start is the mean of five steps, 0.1; the mean of the newest three reaches 0.1 + 0.5 at step 7.
    lines = run("rollout/role_capture/judge", [0.1] * 5 + [0.6, 0.6, 0.6, 0.0])
    assert raised(lines) == [(7, "role_capture", "judge")]


def test_a_role_that_could_not_be_told_apart_at_the_start_is_not_captured_by_staying_so() -> None:
    assert raised(run("rollout/role_capture/solver", [0.7] * 20)) == []


def test_entropy_that_is_gone_before_the_task_is_solved_is_a_collapse() -> None:
    entropy = [0.5] * 5 + [0.005] * 5
    assert raised(run("train/entropy/solver", entropy, rollout__accuracy=0.3)) == [(9, "entropy_collapse", "solver")]
    assert raised(run("train/entropy/solver", entropy, rollout__accuracy=0.9)) == []


def test_answers_that_double_or_hit_the_limit_run_away() -> None:
    longer = run("rollout/response_length/solver", [20.0] * 5 + [40.0] * 3, rollout__cut_rate__solver=0.0)
    assert raised(longer) == [(7, "length_runaway", "solver")]
    cut = run("rollout/response_length/solver", [20.0] * 8, rollout__cut_rate__solver=[0.1] * 5 + [0.6] * 3)
    assert raised(cut) == [(7, "length_runaway", "solver")]


def test_a_few_tokens_more_are_no_runaway() -> None:
    assert raised(run("rollout/response_length/judge", [1.0] * 5 + [3.0] * 9, rollout__cut_rate__judge=0.0)) == []


def test_batches_without_advantages_are_not_calm_but_silent() -> None:
    lines = run("train/num_events", [10.0] * 12, train__num_zero_advantage_events=9.0, rollout__accuracy=0.4)
    assert raised(lines) == [(9, "silent_batches", "")]
    assert raised([line | {"rollout/accuracy": 0.97} for line in lines]) == []
    assert raised([line | {"train/num_zero_advantage_events": 8.9} for line in lines]) == []


# --- settings -----------------------------------------------------------------------------------------------------


def test_an_alarm_can_be_turned_off_and_moved() -> None:
    lines = run("eval/avg_at_k", [0.9, 0.5], eval__num_episodes=1000)
    assert raised(lines, validation_cliff={"action": "off"}) == []
    assert raised(lines, validation_cliff={"drop": 0.5}) == []


def test_alarms_that_a_resumed_run_knows_already_are_not_repeated() -> None:
    lines = run("eval/avg_at_k", [0.9, 0.5, 0.5, 0.9, 0.5], eval__num_episodes=1000)
    resumed = Alarms(AlarmsConfig(), lines[:2])
    assert [len(resumed.check(line)) for line in lines[2:]] == [0, 0, 1]
    assert resumed.metrics() == {"alarm/validation_cliff": 1.0}
    assert resumed.best_step == 0


def test_a_rollback_without_evaluations_is_refused_when_the_recipe_is_read() -> None:
    recipe = {
        "name": "x",
        "env": {"id": "e"},
        "policies": {"p": {"model": "m"}},
        "eval": {"every": 0},
        "alarms": {"validation_cliff": {"action": "rollback"}},
    }
    with pytest.raises(ConfigError, match="needs evaluations to know what was good"):
        parse_recipe(recipe)
