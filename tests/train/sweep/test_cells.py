"""Cells: resolved and checked at once, each run in its own directory, changes refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from srpo_envs.errors import ConfigError, RecordError
from srpo_train.config import load_recipe
from srpo_train.sweep import check_runs, claim, list_runs
from srpo_train.sweep.cells import Run, list_run_dirs, read_cells, standing
from sweeps import NUM_STEPS, make_sweep

AXES = {"env": {"kwargs": {"num_solvers": [1, 3]}}, "objective": {"scaling": ["sqrt", "none"]}}


def log(run: Run, *steps: dict[str, float]) -> None:
    run.run_dir.mkdir(parents=True, exist_ok=True)
    (run.run_dir / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))


def test_every_combination_is_a_cell_and_the_first_seed_comes_first(tmp_path: Path) -> None:
    variants = [{"label": "SRPO"}, {"label": "Dr. MAS, shared", "set": {"objective": {"preset": "dr_mas"}}}]
    runs = list_runs(make_sweep(tmp_path, axes=AXES, variants=variants, seeds=[0, 5]))
    assert [run.recipe.seed for run in runs] == [0] * 8 + [5] * 8
    assert [run.run_dir.relative_to(tmp_path).as_posix() for run in runs[2:5]] == [
        "srpo_num_solvers=3_scaling=sqrt/seed-0",
        "srpo_num_solvers=3_scaling=none/seed-0",
        "dr-mas-shared_num_solvers=1_scaling=sqrt/seed-0",
    ]
    last = runs[-1]
    assert last.name == "Dr. MAS, shared, num_solvers = 3, scaling = none, seed 5"
    assert last.recipe.env.kwargs["num_solvers"] == 3
    assert (last.recipe.objective.preset, last.recipe.objective.scaling) == ("dr_mas", "none")
    assert last.cell.settings == {
        "objective.preset": "dr_mas",
        "env.kwargs.num_solvers": 3,
        "objective.scaling": "none",
    }


def test_axes_that_end_alike_are_told_apart(tmp_path: Path) -> None:
    axes = {"eval": {"temperature": [1.0]}, "sampling": {"temperature": [0.5]}}
    (run,) = list_runs(make_sweep(tmp_path, axes=axes))
    assert run.cell.label == "eval.temperature = 1.0, sampling.temperature = 0.5"


def test_all_cells_that_are_wrong_are_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        list_runs(make_sweep(tmp_path, axes={"optim": {"lr": [1e-4, -1.0, 0.0]}}, seeds=[0, 1]))
    assert len(str(error.value).splitlines()) == 2  # once a cell, not once a seed
    assert "cell 'lr = -1.0': optim.lr: should be greater than 0, got -1.0" in str(error.value)


def test_what_only_the_objective_or_the_world_knows_is_checked_too(tmp_path: Path) -> None:
    axes = {"objective": {"scaling": ["sqrt", "cube"]}, "env": {"kwargs": {"level": [2, 9]}}}
    with pytest.raises(ConfigError) as error:
        check_runs(list_runs(make_sweep(tmp_path, axes=axes)))
    assert [line.split("': ")[0] for line in str(error.value).splitlines()] == [
        "cell 'scaling = sqrt, level = 9",
        "cell 'scaling = cube, level = 2",
        "cell 'scaling = cube, level = 9",
    ]
    assert not list(tmp_path.iterdir())


def test_two_cells_never_share_a_directory(tmp_path: Path) -> None:
    variants = [{"label": "a b"}, {"label": "a  b"}]
    with pytest.raises(ConfigError, match="'a b' and 'a  b' would share the directory 'a-b'"):
        list_runs(make_sweep(tmp_path, variants=variants))


@pytest.mark.parametrize("label", ["..", "/", "../..", "\x1b", "|"])
def test_a_cell_never_takes_the_directory_of_the_sweep_or_one_above(tmp_path: Path, label: str) -> None:
    with pytest.raises(ConfigError, match="no letter or digit to name its directory after"):
        list_runs(make_sweep(tmp_path, variants=[{"label": label}]))


@pytest.mark.parametrize(
    ("label", "folder"), [("../../a", "a"), ("/etc", "etc"), ("größer", "größer"), ("日本", "日本")]
)
def test_labels_of_any_script_name_directories_below_the_sweep_s(tmp_path: Path, label: str, folder: str) -> None:
    (run,) = list_runs(make_sweep(tmp_path, variants=[{"label": label}]))
    assert run.run_dir == tmp_path / folder / "seed-0"


def test_a_claimed_sweep_has_its_recipes_and_its_index(tmp_path: Path) -> None:
    runs = list_runs(make_sweep(tmp_path, axes=AXES))
    with claim(tmp_path, runs):
        assert [cell.label for cell in read_cells(tmp_path)] == [run.cell.label for run in runs]
        assert all(load_recipe(run.run_dir / "recipe.toml") == run.recipe for run in runs)
        with pytest.raises(ConfigError, match="another sweep is running there"):
            claim_in_another_process(tmp_path)


def claim_in_another_process(out: Path) -> None:
    """A lock of fcntl holds between processes, not within one."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(enter_and_leave, (out,))


def enter_and_leave(out: Path) -> None:
    with claim(out, []):
        pass


def test_a_larger_grid_adds_cells_and_keeps_the_others(tmp_path: Path) -> None:
    small = list_runs(make_sweep(tmp_path, axes={"optim": {"lr": [1e-4]}}))
    with claim(tmp_path, small):
        log(small[0], {"step": 1})
    with claim(tmp_path, list_runs(make_sweep(tmp_path, axes={"optim": {"lr": [1e-3, 1e-4]}}))):
        pass
    assert [cell.label for cell in read_cells(tmp_path)] == ["lr = 0.001", "lr = 0.0001"]
    assert standing(small[0].recipe).num_steps == 1
    with claim(tmp_path, list_runs(make_sweep(tmp_path, axes={"optim": {"lr": [1e-2]}}))):
        pass
    assert [cell.label for cell in read_cells(tmp_path)] == ["lr = 0.01", "lr = 0.001", "lr = 0.0001"]


def test_a_run_that_was_begun_otherwise_is_refused_with_the_difference(tmp_path: Path) -> None:
    begun = list_runs(make_sweep(tmp_path))
    with claim(tmp_path, begun):
        log(begun[0], {"step": 1})
    other = list_runs(make_sweep(tmp_path, set={"train": {"num_steps": NUM_STEPS}, "optim": {"lr": 0.5}}))
    with pytest.raises(ConfigError) as error, claim(tmp_path, other):
        raise AssertionError("never claimed")
    assert "seed 0: was begun with optim.lr = 0.0002, now 0.5" in str(error.value)
    assert load_recipe(begun[0].run_dir / "recipe.toml").optim.lr == 2e-4


def test_a_run_without_a_step_may_still_change(tmp_path: Path) -> None:
    with claim(tmp_path, list_runs(make_sweep(tmp_path))):
        pass
    other = list_runs(make_sweep(tmp_path, set={"optim": {"lr": 0.5}}))
    with claim(tmp_path, other):
        assert load_recipe(other[0].run_dir / "recipe.toml").optim.lr == 0.5


def test_where_a_run_stands_is_read_from_its_directory(tmp_path: Path) -> None:
    (run,) = list_runs(make_sweep(tmp_path))
    assert standing(run.recipe).share == 0.0
    log(run, {"step": 0, "eval/accuracy": 0.2, "time/eval_s": 1.0}, {"step": 1, "time/step_s": 2.0})
    begun = standing(run.recipe)
    assert (begun.num_steps, begun.share, begun.accuracy, begun.seconds) == (1, pytest.approx(1 / 3), 0.2, 3.0)
    log(run, {"step": 3, "eval/accuracy": 0.5})
    assert standing(run.recipe).share == 1.0
    assert not standing(run.recipe).is_finished  # not saved yet
    (run.run_dir / "checkpoints" / "step-000003").mkdir(parents=True)
    assert standing(run.recipe).is_finished


def test_a_budget_of_tokens_ends_a_run_before_its_steps_do(tmp_path: Path) -> None:
    (run,) = list_runs(make_sweep(tmp_path, set={"train": {"num_steps": 10, "token_budget": 100}}))
    log(run, {"step": 1, "rollout/num_tokens": 60.0})
    assert standing(run.recipe).share == 0.6
    log(run, {"step": 1, "rollout/num_tokens": 60.0}, {"step": 2, "rollout/num_tokens": 60.0})
    (run.run_dir / "checkpoints" / "step-000002").mkdir(parents=True)
    assert standing(run.recipe).is_finished


def test_a_directory_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no cells\.json"):
        read_cells(tmp_path)


@pytest.mark.parametrize("content", ["", '[{"label"', "[3]", '[{"label": "a"}]', '{"a": 1}', "7"])
def test_a_damaged_index_is_said_and_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "cells.json").write_text(content)
    with pytest.raises(RecordError, match=r"cells\.json: not a list of cells"):
        read_cells(tmp_path)


def test_what_is_no_run_beside_the_runs_of_a_cell_is_passed_over(tmp_path: Path) -> None:
    (cell,) = [run.cell for run in list_runs(make_sweep(tmp_path, variants=[{"label": "a"}]))]
    for name in ("seed-10", "seed-2", "seed-2.bak", "seed-", "notes"):
        (tmp_path / "a" / name).mkdir(parents=True)
    assert [folder.name for folder in list_run_dirs(tmp_path, cell)] == ["seed-2", "seed-10"]
