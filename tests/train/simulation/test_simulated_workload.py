"""Workloads that are drawn and recorded, speeds of a run, and the command."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from collect_world import SAMPLING, make_jobs, scripted
from typer.testing import CliRunner

from srpo_envs.errors import ConfigError
from srpo_envs.records import write_episodes
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.workflows.solver_verifier import SolverVerifier
from srpo_train.cli import app
from srpo_train.collect import Collector
from srpo_train.simulation.calibration import measured_speeds
from srpo_train.simulation.workload import DrawnWorkload, RecordedWorkload

DRAWN = DrawnWorkload(
    cardinalities=(3, 1),
    prompt_tokens=7,
    median_tokens=200.0,
    sigma_tokens=1.0,
    max_tokens=1000,
    median_env_s=0.5,
    sigma_env=0.8,
)


def test_drawn_lengths_have_their_median_and_limit():
    rng = np.random.default_rng(0)
    episodes = [DRAWN.draw(rng) for _ in range(1000)]
    assert {tuple(len(event.num_tokens) for event in episode) for episode in episodes} == {(3, 1)}
    lengths = [length for episode in episodes for event in episode for length in event.num_tokens]
    assert 185 <= np.median(lengths) <= 215
    assert min(lengths) >= 1
    assert max(lengths) == 1000
    assert 0.45 <= np.median([event.env_s for episode in episodes for event in episode]) <= 0.55


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of six steps whose times are made of known speeds: 3 ms a step, 0.1 ms a row, 20 us a trained token."""
    folder = tmp_path_factory.mktemp("run")
    lines = [{"step": 0}]
    for step in range(1, 7):
        script = lambda request, step=step: (  # noqa: E731
            "<verify>approve</verify>" if "Verify" in request.prompt else f"{request.seed % 7 * step * '.'}\\boxed{{4}}"
        )
        collector = Collector(
            lambda: SolverVerifier(Arithmetic(), num_solvers=2, max_new_tokens=1000),
            {"team": scripted("team", script)},
            {"*": "team"},
            seed=step,
        )
        episodes = collector.collect(make_jobs(4 + step), SAMPLING).episodes
        collector.close()
        write_episodes(folder / "events" / f"step-{step:06d}.jsonl", episodes)
        members = [[len(m.token_ids) for m in event.members] for e in episodes for event in e.events]
        longest = sum(max(map(max, members[place::3])) for place in range(3))  # three events an episode
        sampled = sum(map(sum, members))
        prompts = sum(len(m.prompt_token_ids) for e in episodes for event in e.events for m in event.members)
        generate_s = 0.003 * longest + 0.0001 * sampled
        lines.append({"step": step, "time/generate_s": generate_s, "time/update_s": 2e-5 * (sampled + prompts)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_speeds_of_a_run_are_found(run_dir):
    speeds = measured_speeds(run_dir)
    assert speeds.step_s == pytest.approx(0.003)
    assert speeds.step_s_per_row == pytest.approx(0.0001)
    assert speeds.update_s_per_token == pytest.approx(2e-5)


def test_a_run_that_stored_too_little_is_refused(run_dir, tmp_path):
    (tmp_path / "metrics.jsonl").write_text((run_dir / "metrics.jsonl").read_text())
    with pytest.raises(ConfigError, match=r"log.save_events"):
        measured_speeds(tmp_path)


def test_recorded_episodes_are_drawn_whole(run_dir):
    workload = RecordedWorkload.of_run(run_dir)
    episode = workload.draw(np.random.default_rng(0))
    assert [len(event.num_tokens) for event in episode] == [2, 1, 1]
    assert all(tokens > 0 for event in episode for tokens in (*event.num_tokens, *event.num_prompt_tokens))
    with pytest.raises(ConfigError, match="stored no episodes"):
        RecordedWorkload([])


def srpo(*arguments):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def test_the_command_prints_a_table_and_writes_a_file_and_a_picture(tmp_path):
    sizes = ["--set", "prompts_per_step=4", "--set", "group_size=2", "--set", "num_steps=2", "--gpus", "2,4"]
    result = srpo(*sizes, "--mode", "in turn", "--mode", "lag 2", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "lag 2" in result.stdout
    rows = list(csv.DictReader((tmp_path / "simulation.csv").read_text().splitlines()))
    assert [(row["num_gpus"], row["mode"]) for row in rows] == [
        ("2", "in turn"), ("2", "lag 2"), ("4", "in turn"), ("4", "lag 2"),
    ]  # fmt: skip
    assert (tmp_path / "simulation.png").stat().st_size > 0


def test_the_command_takes_a_run_and_its_speeds(run_dir):
    sizes = ["--set", "prompts_per_step=4", "--set", "group_size=2", "--set", "num_steps=2", "--gpus", "2"]
    result = srpo("--run", run_dir, *sizes, "--mode", "lag 1", "--sampling", "0.5")
    assert result.exit_code == 0, result.output


def test_an_unknown_mode_or_key_is_misuse():
    assert srpo("--mode", "lag three").exit_code == 2
    assert srpo("--set", "engine.steps=3").exit_code == 2
