"""A vLLM server of a run on a cluster that is killed while it samples: its requests are made elsewhere."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("vllm")

from cluster_run import GATE, NUM_STEPS, PER_STEP

from srpo_train.metrics import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("num_servers", [1, 2])
def test_a_server_whose_actor_is_killed_loses_no_episode(start, tmp_path, num_servers):
    weights = tmp_path / "weights"
    served = ("engine.kind=served", f"engine.served.weights_dir={weights}", "engine.served.timeout_s=3600")
    run = start(*served, f"ray.engines_per_policy={num_servers}", "ray.cpus_per_engine=0.25")
    run.at_gate()
    os.kill(run.pid("engine of team 0"), signal.SIGKILL)
    run.gates.open(GATE)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["rank_restarts"] == 0
    if num_servers == 1:  # the run has waited for it
        assert cluster["engine_restarts"] == 1
    else:
        unfit = [line.get("publish/unfit_servers") for line in read_metrics(run.run_dir)]
        assert unfit[1] == 1  # the first push after the loss
