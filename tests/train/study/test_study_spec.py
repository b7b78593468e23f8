"""Study files and the grids they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from srpo_envs.errors import ConfigError
from srpo_train.study import list_study_runs, load_study

RECIPES = Path(__file__).parents[3] / "recipes"


def study_file(folder: Path, **fields: Any) -> Path:
    data = {
        "models": {"tiny": "builtin:tiny-team"},
        "seeds": [0, 1],
        "workflows": [
            {
                "label": "Solver-Verifier",
                "task": "arithmetic",
                "recipe": str(RECIPES / "tiny-arithmetic.toml"),
                "mixed": [["solver"], ["verifier", "aggregator"]],
            }
        ],
        "controls": [{"task": "arithmetic", "recipe": str(RECIPES / "tiny-arithmetic-single-agent.toml")}],
        **fields,
    }
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(data))
    return path


def test_every_way_of_sharing_and_the_control_become_cells(tmp_path: Path) -> None:
    runs = list_study_runs(load_study(study_file(tmp_path, sharing=["shared", "isolated", "mixed"])))
    cells = list(dict.fromkeys(run.cell.label for run in runs))
    assert cells == [
        "Solver-Verifier, shared, arithmetic, tiny",
        "Solver-Verifier, isolated, arithmetic, tiny",
        "Solver-Verifier, mixed, arithmetic, tiny",
        "single agent, arithmetic, tiny",
    ]
    assert [run.recipe.seed for run in runs] == [0] * 4 + [1] * 4
    roles = {run.cell.settings["sharing"]: run.recipe.roles for run in runs}
    assert roles["shared"] == {"*": "team"}
    assert roles["isolated"] == {"solver": "solver", "verifier": "verifier", "aggregator": "aggregator"}
    assert roles["mixed"] == {
        "solver": "solver",
        "verifier": "verifier-aggregator",
        "aggregator": "verifier-aggregator",
    }
    assert all(set(run.recipe.policies) == set(run.recipe.roles.values()) for run in runs)


def test_every_policy_has_the_recipe_s_settings_and_the_study_s_model(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, models={"a": "here/a", "b": "hub/b"}))
    models = {
        run.cell.label: {policy.model for policy in run.recipe.policies.values()} for run in list_study_runs(study)
    }
    assert models["Solver-Verifier, isolated, arithmetic, a"] == {"here/a"}
    assert models["single agent, arithmetic, b"] == {"hub/b"}
    assert all(policy.dtype == "float32" for run in list_study_runs(study) for policy in run.recipe.policies.values())


def test_a_label_may_have_a_model_for_each_task(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, models={"a": {"arithmetic": "here/a"}, "b": "hub/b"}))
    models = {
        (run.cell.settings["model"], *(item.model for item in run.recipe.policies.values()))
        for run in list_study_runs(study)
    }
    assert {names[0]: set(names[1:]) for names in models} == {"a": {"here/a"}, "b": {"hub/b"}}


def test_the_model_is_measured_before_training_whatever_the_recipe_says(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, set={"eval": {"at_start": False, "every": 3}}))
    assert all(run.recipe.eval.at_start and run.recipe.eval.every == 3 for run in list_study_runs(study))


def test_the_study_in_the_repository_resolves() -> None:
    runs = list_study_runs(load_study(RECIPES.parent / "studies" / "tiny.toml"))
    assert len({run.cell.folder for run in runs}) * 3 == len(runs)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sharing": ["shared", "alone"]}, "sharing"),
        ({"seeds": [1, 1]}, "seeds: should differ from each other, got '1' twice"),
        ({"models": {}}, "models"),
        ({"models": {"a": {"code": "x"}}}, "models: 'a' has no model for the task 'arithmetic'"),
        ({"workflow": []}, "did you mean 'workflows'"),
        ({"controls": [{"task": "code", "recipe": "x.toml"}]}, "no workflow has the task 'code'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_study(study_file(tmp_path, **changes))


def test_a_mixed_team_must_name_each_role_once(tmp_path: Path) -> None:
    workflow = {
        "label": "W",
        "task": "arithmetic",
        "recipe": str(RECIPES / "tiny-arithmetic.toml"),
        "mixed": [["solver"], ["verifier"]],
    }
    study = load_study(study_file(tmp_path, workflows=[workflow], sharing=["mixed"]))
    with pytest.raises(ConfigError, match="should name each of its roles once; they are solver, verifier, aggregator"):
        list_study_runs(study)


def test_models_whose_labels_differ_in_nothing_a_directory_shows_are_refused(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, models={"a b": "builtin:tiny-team", "a/b": "builtin:tiny-team"}))
    with pytest.raises(ConfigError, match="would share the directory 'solver-verifier_shared_arithmetic_a-b'"):
        list_study_runs(study)


def test_an_environment_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, set={"env": {"kwargs": {"level": 99}}}))
    with pytest.raises(ConfigError, match="workflow 'Solver-Verifier': its environment cannot be made"):
        list_study_runs(study)
