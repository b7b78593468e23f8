"""Processes of a sweep: how many, what becomes of them when one of them or the sweep itself is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from srpo_train.config import load_recipe
from srpo_train.metrics import read_metrics, without_timing
from srpo_train.sweep import claim, list_runs, run_all
from srpo_train.sweep.cells import Run, standing
from srpo_train.sweep.processes import LOG_FILE, describe_status
from sweeps import ROOT, fake_command, make_sweep

THREE = {"optim": {"lr": [1e-4, 2e-4, 3e-4]}}
DEADLINE_S = 150.0


def claimed(out: Path, axes: dict[str, object] = THREE) -> list[Run]:
    runs = list_runs(make_sweep(out, axes=axes))
    with claim(out, runs):
        return runs


def wait_for(condition: Callable[[], object], what: str) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < DEADLINE_S, f"never: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def steps_logged(run: Run) -> list[int]:
    return [int(line["step"]) for line in read_metrics(run.run_dir)]


# --- the runs of one call -----------------------------------------------------------------------------------------


def test_all_runs_are_trained_so_many_at_once(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    outcomes = run_all(
        claimed(tmp_path),
        processes=2,
        command=fake_command(seconds=0.1),
        watch=lambda states: seen.append(list(states.values())),
    )
    assert [outcome.is_finished for outcome in outcomes] == [True, True, True]
    assert seen[0] == ["training", "training", "waiting"]
    assert max(states.count("training") for states in seen) == 2
    assert seen[-1] == ["finished"] * 3


def test_a_run_that_fails_is_told_with_the_end_of_its_log_and_the_others_go_on(tmp_path: Path) -> None:
    runs = claimed(tmp_path)
    outcomes = run_all(runs, processes=1, command=fake_command("fail", only="0.0002"))
    assert [outcome.is_finished for outcome in outcomes] == [True, False, True]
    assert outcomes[1].reason == "exit code 1"
    assert outcomes[1].tail == "begins at step 0\nthe search server is gone"


def test_the_tail_is_of_this_start_alone(tmp_path: Path) -> None:
    run, *_ = runs = claimed(tmp_path)
    (run.run_dir / LOG_FILE).write_text("an older start\n")
    outcomes = run_all(runs, processes=3, command=fake_command("fail", only="0.0001"))
    assert "older" not in outcomes[0].tail
    assert (run.run_dir / LOG_FILE).read_text().startswith("an older start\nbegins")


def test_a_process_that_ends_too_early_did_not_finish_its_run(tmp_path: Path) -> None:
    (outcome,) = run_all(claimed(tmp_path, {}), processes=1, command=lambda run: [sys.executable, "-c", "print('hm')"])
    assert (outcome.is_finished, outcome.reason, outcome.tail) == (False, "it ended before the run did", "hm")


def test_finished_runs_are_not_started_again(tmp_path: Path) -> None:
    runs = claimed(tmp_path)
    run_all(runs, processes=3, command=fake_command())
    outcomes = run_all(runs, processes=3, command=lambda run: ["false"])
    assert all(outcome.is_finished for outcome in outcomes)


def test_cores_are_shared_out_among_the_processes(tmp_path: Path) -> None:
    (run,) = claimed(tmp_path, {})
    script = "import os; print(os.environ['OMP_NUM_THREADS'])"
    run_all([run], processes=1, command=lambda run: [sys.executable, "-c", script])
    run_all([run], processes=10_000, command=lambda run: [sys.executable, "-c", script])
    assert (run.run_dir / LOG_FILE).read_text().split() == [str(len(os.sched_getaffinity(0))), "1"]


# --- kills --------------------------------------------------------------------------------------------------------


def test_a_killed_run_is_told_and_goes_on_with_the_next_call(tmp_path: Path) -> None:
    runs = claimed(tmp_path)
    victim = runs[1]
    killed: list[int] = []

    def kill_once(states: object) -> None:
        if not killed and steps_logged(victim):
            killed.append(child_of(victim))
            os.kill(killed[0], signal.SIGKILL)

    outcomes = run_all(runs, processes=3, command=fake_command(seconds=0.4), watch=kill_once)
    assert [outcome.is_finished for outcome in outcomes] == [True, False, True]
    assert outcomes[1].reason == "killed by SIGKILL"
    taken = steps_logged(victim)
    assert 1 <= len(taken) < 3
    (outcome,) = run_all([victim], processes=1, command=fake_command())
    assert outcome.is_finished
    assert steps_logged(victim) == [1, 2, 3]
    assert f"begins at step {len(taken)}" in (victim.run_dir / LOG_FILE).read_text()


def child_of(run: Run) -> int:
    found = [pid for pid in processes_of(run.run_dir) if pid != os.getpid()]
    assert len(found) == 1
    return found[0]


def processes_of(folder: Path) -> list[int]:
    """Living processes that were started with a directory, or one below it, as an argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(argument.startswith(str(folder)) for argument in arguments) and is_alive(int(entry.parent.name)):
            found.append(int(entry.parent.name))
    return found


def test_ctrl_c_ends_every_process_and_what_it_started(tmp_path: Path) -> None:
    runs = claimed(tmp_path)[:2]

    def interrupt(states: object) -> None:
        if all((run.run_dir / "child").exists() and steps_logged(run) for run in runs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(runs, processes=2, command=fake_command("child", seconds=0.3), watch=interrupt)
    wait_for(lambda: not processes_of(tmp_path), "no process of the sweep")
    grandchildren = [int((run.run_dir / "child").read_text()) for run in runs]
    wait_for(lambda: not any(map(is_alive, grandchildren)), "nothing they started")
    assert not any(standing(run.recipe).is_finished for run in runs)


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from sweeps import make_sweep, {command}
from srpo_train.sweep import claim, list_runs, run_all
out = Path(sys.argv[1])
runs = list_runs(make_sweep(out, **{fields!r}))
with claim(out, runs):
    run_all(runs, processes=2, {arguments})
"""


def start_sweep(out: Path, fields: dict[str, object], command: str, arguments: str) -> subprocess.Popen[bytes]:
    tests = str(Path(__file__).parent)
    script = DRIVER.format(tests=tests, fields=fields, command=command, arguments=arguments)
    return subprocess.Popen(
        [sys.executable, "-c", script, str(out)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_a_sweep_that_is_killed_leaves_no_process_behind_and_goes_on(tmp_path: Path) -> None:
    fields: dict[str, object] = {"axes": THREE}
    command = "fake_command('child', seconds=0.5)"
    sweep = start_sweep(tmp_path, fields, "fake_command", f"command={command}")
    runs = list_runs(make_sweep(tmp_path, axes=THREE))
    wait_for(lambda: all(steps_logged(run) for run in runs[:2]), "a step of both runs")
    sweep.kill()
    sweep.wait()
    wait_for(lambda: not processes_of(tmp_path), "no process of the sweep")
    wait_for(lambda: not is_alive(int((runs[0].run_dir / "child").read_text())), "nothing they started")
    with claim(tmp_path, runs):  # the lock went with the process that held it
        outcomes = run_all(runs, processes=3, command=fake_command())
    assert all(outcome.is_finished for outcome in outcomes)
    assert [steps_logged(run) for run in runs] == [[1, 2, 3]] * 3


SMALL = {
    "env": {"kwargs": {"num_solvers": 1, "max_new_tokens": 6}},
    "eval": {"every": 0},
    "rollout": {"prompts_per_step": 2, "group_size": 2},
    "train": {"num_steps": 3, "checkpoint_every": 1},
    "log": {"tensorboard": False, "save_events": "none"},
}


def test_real_training_killed_with_its_sweep_arrives_at_the_same_numbers(tmp_path: Path, tiny_checkpoint: Path) -> None:
    from srpo_train.loop import train

    settings = SMALL | {"policies": {"team": {"model": str(tiny_checkpoint), "dtype": "float32", "device": "cpu"}}}
    sweep = start_sweep(tmp_path / "killed", {"set": settings}, "make_sweep as _", "")
    (run,) = list_runs(make_sweep(tmp_path / "killed", set=settings))
    wait_for(lambda: steps_logged(run), "a step of training")
    sweep.kill()
    sweep.wait()
    wait_for(lambda: not processes_of(run.run_dir), "no process of the sweep")
    with claim(tmp_path / "killed", [run]):
        (outcome,) = run_all([run], processes=1)
    assert outcome.is_finished, outcome.tail
    whole = train(load_recipe(run.run_dir / "recipe.toml", [f"output_dir={tmp_path}", "name=whole"]))
    assert list(map(without_timing, read_metrics(run.run_dir))) == list(map(without_timing, read_metrics(whole)))


def test_how_a_process_ended_is_said_in_words() -> None:
    assert describe_status(2) == "exit code 2"
    assert describe_status(-signal.SIGTERM) == "killed by SIGTERM"
