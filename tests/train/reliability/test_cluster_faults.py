"""Parts of a run on a cluster that are killed or stopped at a known moment: the run goes on, and everything is counted.

Each test starts a real run with environment workers and copies of the policy in processes of their own, waits until one
episode stands before its first step (a gate of `fault_world`), and does its harm there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from cluster_run import GATE, NUM_STEPS, PER_STEP, RECIPE, SMALL
from fault_world import SEARCH_ENV_ID
from rank_world import run_ranks
from run_accounts import stored

from srpo_train.config import load_recipe
from srpo_train.loop import train
from srpo_train.metrics import read_metrics, without_timing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COPIES = ("ray.engines_per_policy=2",)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The numbers of the same run in one process, in which nothing fails."""
    return numbers(train(load_recipe(RECIPE, [f"output_dir={tmp_path_factory.mktemp('alone')}", *SMALL])))


def numbers(run_dir):
    lines = [without_timing(line) for line in read_metrics(run_dir)]
    own = ("cluster/", "rollout/num_lost_graders")
    return [{name: value for name, value in line.items() if not name.startswith(own)} for line in lines]


def cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_an_environment_worker_that_is_killed_changes_no_number(start, alone):
    run = start()
    os.kill(run.at_gate(), signal.SIGKILL)
    run.gates.open(GATE)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["env_worker_restarts"] == 1
    assert cluster["rebuilt_episodes"] >= 1
    assert numbers(run.run_dir) == alone


def test_a_grading_worker_that_is_killed_in_an_environment_worker_changes_no_number(start, alone):
    run = start()
    run.at_gate()
    run.gates.lose_grader()
    run.gates.open(GATE)
    accounts, cluster = run.end()
    assert run.gates.is_grader_lost
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["lost_graders"] == 1
    assert numbers(run.run_dir) == alone


def test_a_copy_of_the_policy_that_is_killed_while_it_samples_loses_no_episode(start):
    run = start(*COPIES)
    run.at_gate()
    pid = run.pid("engine of team 0")
    before = cpu_ticks(pid)
    run.gates.open(GATE)
    run.wait_until(lambda: cpu_ticks(pid) >= before + 3)  # it was idle, and is at work
    os.kill(pid, signal.SIGKILL)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["engine_restarts"] == 1
    assert cluster["rank_restarts"] == 0


def train_on_rank(rank, folder):
    train(load_recipe(RECIPE, [f"output_dir={folder}", *SMALL]))


def test_ranks_that_are_killed_while_they_collect_and_save_arrive_at_the_same_numbers(start, tmp_path):
    run = start("ray.num_ranks=2", closed=(GATE, "step3/p0/g0"))
    run.at_gate()
    os.kill(run.pid("rank 1"), signal.SIGKILL)  # whose episode it is
    run.gates.open(GATE)
    run.at_gate("step3/p0/g0")
    main = run.pid("rank 0")
    run.gates.open("step3/p0/g0")
    run.wait_until(lambda: list((run.run_dir / "checkpoints").glob("step-000003*")))
    os.kill(main, signal.SIGKILL)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["rank_restarts"] == 4  # both, twice
    run_ranks(2, tmp_path / "meeting", train_on_rank, tmp_path / "ranks")
    assert numbers(run.run_dir) == numbers(tmp_path / "ranks" / run.run_dir.name)


def test_a_driver_that_is_killed_takes_all_with_it_and_the_resumed_run_arrives_at_the_same_numbers(start, alone):
    run = start()
    run.at_gate()
    run.driver.kill()
    run.driver.wait()
    while run.commands.left:
        time.sleep(0.05)
    assert [line["step"] for line in read_metrics(run.run_dir)] == [1]
    run.gates.open(GATE)
    run.start("--resume")
    accounts, _ = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert numbers(run.run_dir) == alone


def test_an_environment_worker_that_is_stopped_costs_its_episodes_their_deadline_and_the_run_goes_on(start):
    run = start("rollout.step_timeout_s=8", "rollout.straggler_grace_s=2")
    stopped = run.at_gate()
    os.kill(stopped, signal.SIGSTOP)
    try:
        run.gates.open(GATE)
        accounts, cluster = run.end()
    finally:
        with contextlib.suppress(ProcessLookupError):  # ended with the run
            os.kill(stopped, signal.SIGCONT)
    lines = read_metrics(run.run_dir)
    assert lines[1]["rollout/num_expired_episodes"] >= 1
    assert accounts.expired == accounts.failed == PER_STEP * NUM_STEPS - accounts.trained
    assert accounts.trained >= PER_STEP * NUM_STEPS // 2
    assert cluster["env_worker_restarts"] == 0


def test_a_copy_that_is_stopped_is_killed_at_its_deadline_and_loses_no_episode(start):
    run = start(*COPIES, "ray.copy_timeout_s=10")
    run.at_gate()
    os.kill(run.pid("engine of team 1"), signal.SIGSTOP)
    run.gates.open(GATE)
    accounts, cluster = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert cluster["engine_restarts"] == 1
    assert "engine of team 1 did not answer for 10 s and is killed" in run.output


def test_a_full_disk_ends_a_run_at_once_by_name_and_freed_it_arrives_at_the_same_numbers(start, alone, disk):
    run = start(output_dir=disk.path)
    run.at_gate()
    disk.fill()
    run.gates.open(GATE)
    assert run.driver.wait() == 1
    assert "events/step-000002.jsonl could not be written: No space left on device" in " ".join(run.output.split())
    disk.free()
    run.start("--resume")
    accounts, _ = run.end()
    assert (accounts.trained, accounts.failed) == (PER_STEP * NUM_STEPS, 0)
    assert numbers(run.run_dir) == alone


def test_a_search_server_that_is_killed_costs_what_it_did_not_answer_and_the_run_goes_on(start):
    for package in ("httpx", "fastapi", "prometheus_client", "uvicorn"):
        pytest.importorskip(package)
    from search_process import ServerProcess

    server = ServerProcess()
    server.start()
    try:
        once = "?timeout_s=5&max_retries=0&first_pause_s=0.01"
        search = (f"env.id={SEARCH_ENV_ID}", f"env.kwargs.retriever={server.url}{once}", "rollout.step_retries=1")
        run = start(*search, recipe=RECIPE.with_name("tiny-search.toml"))
        run.at_gate()
        server.kill()
        run.gates.open(GATE)
        run.wait_until(lambda: "RetrieverError" in run.output)
        server.start()
        accounts, _ = run.end()
    finally:
        server.kill()
    assert accounts.expired == 0
    assert accounts.trained + accounts.failed == PER_STEP * NUM_STEPS
    assert accounts.failed + accounts.recollected >= 1
    assert sum(line["rollout/num_step_retries"] for line in read_metrics(run.run_dir)) >= 1
    searches = [
        call
        for step in range(1, NUM_STEPS + 1)
        for episode in stored(run.run_dir, step)
        for event in episode.events
        for call in event.tool_calls
        if call.name == "search"
    ]
    assert searches
    assert all(call.result for call in searches)  # none stands for a failure
