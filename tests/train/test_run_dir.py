"""`srpo_train.run_dir`: one run, one writer, one directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from srpo_envs.errors import ConfigError
from srpo_train.config import Recipe, load_recipe
from srpo_train.run_dir import claimed_run_dir

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny-arithmetic.toml"


def make_recipe(folder: Path, *changes: str) -> Recipe:
    return load_recipe(RECIPE, [f"output_dir={folder}", "name=run", *changes])


def start(recipe: Recipe, *, resume: bool = False, num_results: int = 0) -> Path:
    with claimed_run_dir(recipe, resume=resume) as run_dir:
        (run_dir / "metrics.jsonl").write_text('{"step":0}\n' * num_results)
    return run_dir


def test_the_resolved_recipe_and_the_software_of_every_start_are_kept(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    start(recipe, num_results=1)
    run_dir = start(recipe, resume=True)
    assert load_recipe(run_dir / "recipe.toml") == recipe
    starts = [json.loads(line) for line in (run_dir / "software.jsonl").read_text().splitlines()]
    assert len(starts) == 2
    assert {"python", "platform", "revision", "time"} <= starts[0].keys()
    assert {"torch", "transformers", "srpo"} <= starts[0]["packages"].keys()


def test_a_directory_with_results_is_not_given_to_another_run(tmp_path: Path) -> None:
    start(make_recipe(tmp_path), num_results=1)
    with pytest.raises(ConfigError, match="already holds a run; continue it with --resume"):
        start(make_recipe(tmp_path))
    with pytest.raises(ConfigError, match=r"differs from the stored one in optim\.lr, seed"):
        start(make_recipe(tmp_path, "optim.lr=1e-3", "seed=1"), resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_failed_before_its_first_result_leaves_its_name_free(tmp_path: Path, resume: bool) -> None:
    start(make_recipe(tmp_path, "objective.preset=spro"))
    corrected = make_recipe(tmp_path)
    assert load_recipe(start(corrected, resume=resume) / "recipe.toml") == corrected


@pytest.mark.parametrize("change", ["train.num_steps=90", "train.keep_last=5", "log.save_events=all"])
def test_length_and_housekeeping_may_change_in_a_continued_run(tmp_path: Path, change: str) -> None:
    start(make_recipe(tmp_path), num_results=1)
    start(make_recipe(tmp_path, change), resume=True)


def test_the_length_may_not_change_where_the_learning_rate_depends_on_it(tmp_path: Path) -> None:
    start(make_recipe(tmp_path, "optim.schedule=cosine"), num_results=1)
    with pytest.raises(ConfigError, match=r"differs from the stored one in train\.num_steps"):
        start(make_recipe(tmp_path, "optim.schedule=cosine", "train.num_steps=90"), resume=True)


def test_a_run_may_be_moved_and_continued(tmp_path: Path) -> None:
    start(make_recipe(tmp_path), num_results=1).rename(tmp_path / "moved")
    assert start(make_recipe(tmp_path, "name=moved"), resume=True) == tmp_path / "moved"


def test_two_processes_do_not_write_to_one_run(tmp_path: Path) -> None:
    script = (
        "import sys; from srpo_train.config import load_recipe; from srpo_train.run_dir import claimed_run_dir\n"
        "with claimed_run_dir(load_recipe(sys.argv[1]), resume=True): print('writing')"
    )

    def other_process() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, str(tmp_path / "run" / "recipe.toml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    with claimed_run_dir(make_recipe(tmp_path), resume=False):
        meanwhile = other_process()
    assert "another process is training there" in meanwhile.stderr
    assert meanwhile.returncode != 0
    assert other_process().stdout == "writing\n"
