"""Sweep files: what they may say, and how they are told what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from srpo_envs.errors import ConfigError
from srpo_train.sweep import list_runs, load_sweep
from srpo_train.sweep.spec import merge, parse_axis
from sweeps import RECIPE, ROOT, make_sweep


def write(folder: Path, text: str) -> Path:
    path = folder / "my-sweep.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_sweep(write(folder, text))
    return str(error.value)


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_can_be_resolved(path: Path) -> None:
    runs = list_runs(load_sweep(path))
    assert len({run.run_dir for run in runs}) == len(runs) > 1


def test_there_are_sweeps_to_check() -> None:
    assert list((ROOT / "sweeps").glob("*.toml"))


def test_a_recipe_with_a_grid_is_a_sweep() -> None:
    sweep = load_sweep(RECIPE, ["objective.scaling=sqrt,none", "optim.lr=1e-4"], {"seeds": (7,), "processes": 3})
    assert sweep.axes == {"objective": {"scaling": ["sqrt", "none"]}, "optim": {"lr": [1e-4]}}
    assert (sweep.recipe, sweep.out, sweep.seeds, sweep.processes) == (
        str(RECIPE),
        "runs/tiny-arithmetic-sweep",
        (7,),
        3,
    )


def test_recipes_are_found_from_the_sweep_file(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(RECIPE.read_text())
    sweep = load_sweep(write(tmp_path, 'variants = [{ label = "a", recipe = "base.toml" }]'))
    assert sweep.variants[0].recipe == str(tmp_path / "base.toml")
    assert sweep.out == "runs/my-sweep"
    assert list_runs(sweep)[0].recipe.name == "seed-0"


def test_a_grid_on_the_command_line_replaces_the_axis_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'recipe = "r.toml"\naxes.optim.lr = [1.0]\naxes.objective.scaling = ["sqrt"]')
    assert load_sweep(path, ["optim.lr=2.0,3.0"]).axes == {
        "optim": {"lr": [2.0, 3.0]},
        "objective": {"scaling": ["sqrt"]},
    }


def test_values_of_an_axis_are_toml_or_text_and_a_list_may_hold_commas() -> None:
    assert parse_axis("a.b=1,2.5,true,sqrt") == {"a": {"b": [1, 2.5, True, "sqrt"]}}
    assert parse_axis("optim.betas=[[0.9,0.95],[0.9,0.99]]") == {"optim": {"betas": [[0.9, 0.95], [0.9, 0.99]]}}
    with pytest.raises(ConfigError, match="--grid section"):
        parse_axis("optim.lr")


def test_tables_are_joined_and_other_values_replaced() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": {"e": 5}}) == {
        "a": {"b": 4, "c": 2},
        "d": {"e": 5},
    }


def test_an_unknown_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    assert "seds: unknown key; did you mean 'seeds'" in refusal(tmp_path, 'recipe = "r.toml"\nseds = [1]')
    text = refusal(tmp_path, '[[variants]]\nlabel = "a"\nrecipee = "r.toml"')
    assert "variants.0.recipee: unknown key; did you mean 'recipe'" in text


def test_what_makes_no_grid_is_refused(tmp_path: Path) -> None:
    assert "axes.optim.lr: should be a list" in refusal(tmp_path, 'recipe = "r.toml"\naxes.optim.lr = 1.0')
    assert "axes.seed: every run has its own" in refusal(tmp_path, 'recipe = "r.toml"\naxes.seed = [1, 2]')
    assert "seeds: should differ" in refusal(tmp_path, 'recipe = "r.toml"\nseeds = [1, 1]')
    assert "seeds" in refusal(tmp_path, 'recipe = "r.toml"\nseeds = []')
    assert "variants: should differ" in refusal(tmp_path, 'recipe = "r.toml"\nvariants = [{label="a"}, {label="a"}]')
    assert "the sweep has none" in refusal(tmp_path, "seeds = [1]")
    assert "variant 'b' has none" in refusal(tmp_path, 'variants = [{label="a", recipe="r.toml"}, {label="b"}]')


def test_a_variant_wins_over_what_holds_for_all(tmp_path: Path) -> None:
    variants = [{"label": "slow", "set": {"optim": {"lr": 1e-5}}}, {"label": "as all"}]
    slow, as_all = list_runs(make_sweep(tmp_path, set={"optim": {"lr": 1e-3}}, variants=variants))
    assert (slow.recipe.optim.lr, as_all.recipe.optim.lr) == (1e-5, 1e-3)
