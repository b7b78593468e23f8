"""What a step reports, by hand; and what a whole run writes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from srpo_train.throughput.accounting import Devices, throughput_metrics
from srpo_train.throughput.recorder import Work

DEVICES = Devices(peak_flops=100.0, num_trainers=2, num_engines=2)
ROLLOUT = SimpleNamespace(
    episodes=[SimpleNamespace(num_tokens=60), SimpleNamespace(num_tokens=20)], generate_s=4.0, env_s=1.0
)
RANKS = [
    {
        "score": Work(seconds=1.0, num_tokens=10, num_slots=12, model_flops=100.0, hardware_flops=100.0),
        "backward": Work(seconds=2.0, num_tokens=30, num_slots=38, model_flops=300.0, hardware_flops=400.0),
        "optimizer": Work(seconds=0.5),
        "generate": Work(num_tokens=90, num_slots=100),
        "publish": Work(seconds=0.25),
    },
    {"backward": Work(seconds=3.0, model_flops=100.0, hardware_flops=150.0)},
]


def report(**changes):
    options = {"before": {"checkpoint": Work(seconds=2.0)}, "generate_flops": 80.0, "step_s": 10.0} | changes
    return throughput_metrics(RANKS, ROLLOUT, options.pop("devices", DEVICES), **options)


def test_utilisation_is_work_over_what_the_devices_could_have_done():
    # The slowest rank updates for 3.5 s: 500 operations of 2 * 100 * 3.5 = 700; with what is made again 650.
    found = report()
    assert found["perf/mfu/update"] == pytest.approx(500 / 700)
    assert found["perf/hfu/update"] == pytest.approx(650 / 700)
    assert found["perf/mfu/generate"] == pytest.approx(80 / (4 * 200))
    assert "perf/mfu/generate" not in report(
        devices=Devices(peak_flops=100.0, num_trainers=2, num_engines=1, samples_in_process=False)
    )


def test_seconds_of_a_phase_are_those_of_the_slowest_rank_and_the_rest_is_other():
    found = report()
    seconds = {name: found[f"time/{name}_s"] for name in ("score", "backward", "optimizer", "publish", "checkpoint")}
    assert seconds == {"score": 1.0, "backward": 3.0, "optimizer": 0.5, "publish": 0.25, "checkpoint": 2.0}
    # 10 - 4 (generating) - 1 (environments) - 4.75
    assert found["time/other_s"] == pytest.approx(0.25)


def test_what_goes_on_beside_the_trainer_takes_nothing_of_its_time():
    # 10 - 2 (waiting) - 4.5 (update), although sampling took 5 s and a push 0.25 s meanwhile
    assert report(waited_s=2.0)["time/other_s"] == pytest.approx(3.5)


def test_rates_are_the_sampled_tokens_of_the_step_per_second_and_device():
    found = report()
    assert found["perf/tokens_per_s/generate"] == 80 / 4 / 2
    assert found["perf/tokens_per_s/backward"] == pytest.approx(80 / 3 / 2)
    assert found["perf/tokens_per_s/checkpoint"] == 80 / 2 / 2
    assert "perf/tokens_per_s/evaluate" not in found  # there was none


def test_shares_of_padding_and_of_idle_time():
    found = report()
    assert found["perf/padding_share/update"] == pytest.approx(1 - 40 / 50)
    assert found["perf/padding_share/generate"] == pytest.approx(0.1)
    assert found["perf/idle_share/engine"] == pytest.approx(0.6)
    assert found["perf/idle_share/trainer"] == pytest.approx(0.65)


def test_a_step_without_an_update_has_no_utilisation():
    found = throughput_metrics([{}], ROLLOUT, DEVICES, before={}, generate_flops=0.0, step_s=5.0)
    assert found["perf/mfu/update"] == found["perf/mfu/generate"] == 0.0
    assert found["perf/idle_share/trainer"] == 1.0
    assert "perf/padding_share/update" not in found
