"""Simulated runs: step times that can be worked out, the bounds of every mode, and the best division."""

from __future__ import annotations

import pytest

from srpo_envs.errors import ConfigError
from srpo_train.simulation.cluster import SimulatedRun, _highest, simulate
from srpo_train.simulation.comparison import compare_modes
from srpo_train.simulation.scenario import MODE_NAMES, Mode, Scenario, load_scenario, mode_named

MODES = [mode_named(name) for name in (*MODE_NAMES, "lag 2, whole batches", "lag 2, requests too")]

EVEN = (
    # One event of one member and 100 tokens, no environment; one copy, 10 ms a step: a batch of 4 takes 1 s.
    "gpus=2",
    "prompts_per_step=2",
    "group_size=2",
    "num_steps=6",
    "num_minibatches=1",
    "episodes.cardinalities=[1]",
    "episodes.prompt_tokens=100",
    "episodes.median_tokens=100",
    "episodes.sigma_tokens=0.0",
    "episodes.median_env_s=0.0",
    "engine.step_s=0.01",
    "engine.step_s_per_row=0.0",
    "engine.prefill_s_per_token=0.0",
    "update.gpu_s_per_token=0.0",
    "push.transfer_s=0.0",
    "push.swap_s=0.0",
)
UNEVEN = ("gpus=8", "prompts_per_step=8", "group_size=4", "num_steps=6", "engine.max_rows=64")
IN_TURN = Mode(name="in turn", straddle="episodes")


def scenario(*overrides: str, base=EVEN) -> Scenario:
    return load_scenario(None, [*base, *overrides])


@pytest.mark.parametrize(("update_s", "expected"), [(0.4, 1.4), (2.0, 3.0)])
def test_in_turn_a_step_takes_the_sum(update_s, expected):
    outcome = simulate(scenario(f"update.step_s={update_s}"), IN_TURN, 1)
    assert outcome.step_s == pytest.approx(expected)
    assert outcome.rollout_idle == pytest.approx(1 - 1.0 / expected)
    assert outcome.train_idle == pytest.approx(1 - update_s / expected)
    assert outcome.utilisation == pytest.approx((1.0 + update_s) / (2 * expected))
    assert outcome.tokens_per_gpu_s == pytest.approx(400 / expected / 2)
    assert outcome.lag_max == 0


@pytest.mark.parametrize(("update_s", "expected"), [(0.4, 1.0), (2.0, 2.0)])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.max_lag], ids=lambda mode: mode.name)
def test_with_overlap_a_step_takes_the_longer_of_both(mode, update_s, expected):
    # Four episodes are one batch of the engine. Groups that run ahead share it with those before them, which costs
    # nothing here: a step of the engine takes as long whatever its rows, so more overlap can only be faster.
    outcome = simulate(scenario(f"update.step_s={update_s}"), mode, 1)
    assert update_s - 1e-9 <= outcome.step_s <= expected + 1e-9
    assert outcome.lag_max <= mode.max_lag


def test_whole_batches_ahead_take_exactly_the_longer_of_both():
    outcome = simulate(scenario("update.step_s=0.4"), Mode(name="one", max_lag=1), 1)
    assert outcome.step_s == pytest.approx(1.0)
    assert (outcome.lag_mean, outcome.lag_max) == (1.0, 1)
    assert outcome.rollout_idle == pytest.approx(0.0, abs=1e-9)


def test_a_push_in_turn_is_waited_for_and_a_transfer_beside_sampling_is_not():
    pushed = ("update.step_s=0.2", "push.transfer_s=0.3", "push.swap_s=0.1")
    assert simulate(scenario(*pushed), IN_TURN, 1).step_s == pytest.approx(1.0 + 0.2 + 0.3 + 0.1)
    # With whole batches ahead the weights are there before the batch under way is over; only the swap is left.
    assert simulate(scenario(*pushed), Mode(name="one", max_lag=1), 1).step_s == pytest.approx(1.1)


def test_gpus_share_an_update():
    slow = ("gpus=5", "update.gpu_s_per_token=0.01", "update.step_s=0.0")  # 800 row tokens: 8 GPU seconds
    outcome = simulate(scenario(*slow), IN_TURN, 1)
    assert outcome.step_s == pytest.approx(1.0 + 8.0 / 4)


def test_rounds_wait_for_the_longest_response_of_all():
    uneven = scenario(base=UNEVEN)
    in_rounds = simulate(uneven, Mode(name="r", is_colocated=True, in_rounds=True))
    free = simulate(uneven, Mode(name="f", is_colocated=True))
    assert in_rounds.step_s > 1.2 * free.step_s


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_no_mode_exceeds_its_lag_or_the_clock(mode):
    outcome = simulate(scenario(base=UNEVEN), mode, 5)
    assert outcome.lag_max <= mode.max_lag
    for share in (outcome.utilisation, outcome.rollout_idle, outcome.train_idle):
        assert -1e-9 <= share <= 1 + 1e-9
    assert outcome.rows <= 64


def test_more_lag_is_not_slower_and_the_same_seed_gives_the_same():
    uneven = scenario(base=UNEVEN)
    lags = [Mode(name=str(lag), max_lag=lag, straddle="episodes") for lag in (1, 2, 4)]
    speeds = [simulate(uneven, mode, 5).tokens_per_gpu_s for mode in lags]
    assert speeds == sorted(speeds)
    assert simulate(uneven, lags[0], 5) == simulate(uneven, lags[0], 5)


def test_lost_groups_are_counted_and_replaced():
    outcome = simulate(scenario("lost_share=0.3", "num_steps=40"), IN_TURN, 1)
    assert 20 <= outcome.num_lost <= 55  # of 80 / 0.7 groups three tenths: 34, give or take four deviations of 4.9
    assert outcome.tokens_per_gpu_s * outcome.step_s * 2 == pytest.approx(400)


def test_the_best_division_is_found():
    # Sampling needs three times the GPU seconds of the update: six of eight GPUs.
    balanced = scenario(
        "gpus=8",
        "prompts_per_step=12",
        "group_size=4",
        "engine.step_s=0.0",
        "engine.step_s_per_row=0.01",
        "update.gpu_s_per_token=0.00167",
        "update.step_s=0.0",
    )
    assert simulate(balanced, Mode(name="one", max_lag=2, straddle="episodes")).num_rollout_gpus in (5, 6, 7)


def test_the_highest_point_of_a_hill_is_found():
    assert abs(_highest(lambda x: -abs(x - 613), 1, 1023) - 613) <= 40
    assert _highest(lambda x: x, 1, 7) == 7


def test_a_scenario_is_read_like_a_recipe(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("gpus = 16\n[engine]\ngpus = 2\n")
    read = load_scenario(path, ["push.swap_s=0.25"])
    assert (read.gpus, read.engine.gpus, read.push.swap_s) == (16, 2, 0.25)
    assert len(SimulatedRun(read, IN_TURN, 12)._fleet.replicas) == 6
    with pytest.raises(ConfigError, match="unknown key"):
        load_scenario(path, ["push.swaps=1"])


@pytest.mark.parametrize("name", ["lag 0", "lag two", "lag 2, sometimes", "at once"])
def test_a_mode_that_does_not_exist_is_refused(name):
    with pytest.raises(ConfigError, match="expected 'in turn'"):
        mode_named(name)


@pytest.mark.parametrize(
    ("gpus", "engine_gpus", "num_rollout_gpus", "counts"),
    [
        (2, 1, 0, "0 sample and 2 train"),
        (2, 1, 2, "2 sample and 0 train"),
        (8, 4, 3, "3 sample and 5 train"),
        (1, 1, None, "1 sample and 0 train"),
        (2, 4, None, "2 sample and 0 train"),
        (4, 4, None, "4 sample and 0 train"),
    ],
)
def test_a_cluster_without_an_engine_or_a_trainer_is_refused(gpus, engine_gpus, num_rollout_gpus, counts):
    short = scenario(f"gpus={gpus}", f"engine.gpus={engine_gpus}")
    with pytest.raises(ConfigError, match=f"{counts}: expected at least {engine_gpus} that sample"):
        simulate(short, Mode(name="one", max_lag=1), num_rollout_gpus)


def test_where_all_gpus_do_both_one_engine_is_enough():
    in_turn = mode_named("in turn")
    assert simulate(scenario("gpus=1"), in_turn).num_rollout_gpus == 1
    with pytest.raises(ConfigError, match="2 sample and 2 train: expected at least 4"):
        simulate(scenario("gpus=2", "engine.gpus=4"), in_turn)


@pytest.mark.parametrize(("gpus", "share"), [(0, 0.0), (-8, 0.0), (8, 1.0), (8, 0.01)])
def test_sizes_that_leave_no_engine_or_no_trainer_are_refused(gpus, share):
    with pytest.raises(ConfigError, match="expected at least 1"):
        compare_modes(scenario(), [Mode(name="one", max_lag=1)], [gpus], sampling_share=share)


def test_a_share_of_gpus_is_taken_in_whole_engines():
    (outcome,) = compare_modes(
        scenario("engine.gpus=2"), [Mode(name="one", max_lag=1)], [9], sampling_share=0.5
    )  # 4.5 GPUs: 2.25 engines
    assert outcome.num_rollout_gpus == 4
