"""`srpo_train.reporting.methods` and `.grouping`: what runs are called and which are one method."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from report_world import RECIPE, training_values

from srpo_envs.errors import ConfigError
from srpo_train.config import EnvConfig, load_recipe
from srpo_train.reporting.grouping import check_labels, grouped
from srpo_train.reporting.methods import choices_of, method_name, model_name, task_set_of, told_apart

NON_SHARING = (
    "policies.checker.model=builtin:tiny-team",
    "roles.verifier=checker",
)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ((), "Setwise SRPO"),
        (("objective.preset=dr_mas",), "LLM sharing Dr. MAS"),
        (("objective.preset=at_grpo",), "LLM sharing AT-GRPO"),
        (("objective.preset=srpo_none",), "Setwise SRPO, joint sum"),
        (NON_SHARING, "LLM non-sharing Setwise SRPO"),
        ((*NON_SHARING, "objective.preset=grpo"), "LLM non-sharing GRPO"),
    ],
)
def test_methods_are_named_after_the_papers_rows(changes: tuple[str, ...], name: str) -> None:
    assert method_name(load_recipe(RECIPE, changes), [training_values()]) == name


def test_one_role_that_always_acts_alone_is_a_single_agent() -> None:
    recipe = load_recipe(RECIPE, ["objective.preset=grpo"])
    assert method_name(recipe, [training_values(["solver"])]) == "Single-agent GRPO"
    several = training_values(["solver"]) | {"rollout/cardinality/solver": 3.0}
    assert method_name(recipe, [training_values(["solver"]), several]) == "LLM sharing GRPO"
    assert method_name(load_recipe(RECIPE), [training_values(["solver"])]) == "Single-agent SRPO"


def test_a_model_is_named_once_and_several_in_order() -> None:
    assert model_name(load_recipe(RECIPE, NON_SHARING)) == "builtin:tiny-team"
    assert model_name(load_recipe(RECIPE, [*NON_SHARING, "policies.checker.model=a"])) == "a, builtin:tiny-team"


def test_seed_name_place_and_housekeeping_are_no_choices() -> None:
    same = ["seed=7", "name=other", "output_dir=elsewhere", "log.save_events=all", "train.checkpoint_every=3"]
    assert choices_of(load_recipe(RECIPE, same)) == choices_of(load_recipe(RECIPE))
    assert choices_of(load_recipe(RECIPE, ["train.num_steps=3"])) != choices_of(load_recipe(RECIPE))


def test_tasks_are_the_same_whoever_works_on_them_and_however_the_defaults_are_given() -> None:
    team = task_set_of(
        EnvConfig(id="srpo_envs/ArithmeticSolverVerifier-v0", kwargs={"num_solvers": 3, "split": "test"})
    )
    alone = task_set_of(EnvConfig(id="ArithmeticSingleAgent-v0", kwargs={"level": 2, "split": "test"}))
    assert team[0] == alone[0]
    assert (team[1], alone[1]) == ("Arithmetic (split=test)", "Arithmetic (level=2, split=test)")
    assert task_set_of(EnvConfig(id="ArithmeticSingleAgent-v0", kwargs={"level": 3, "split": "test"}))[0] != team[0]


def test_tasks_of_an_environment_unknown_here_are_known_by_its_arguments() -> None:
    one = EnvConfig(id="acme:acme/Debate-v0", kwargs={"split": "test"})
    assert task_set_of(one)[1] == "Debate-v0 (split=test)"
    assert task_set_of(one)[0] != task_set_of(EnvConfig(id="acme:acme/Debate-v1", kwargs={"split": "test"}))[0]


def test_what_differs_is_written_shortly_and_in_full_where_it_must_be() -> None:
    base = {"env.id": "srpo_envs/A-v0", "optim.lr": 0.1, "policies.p.optim.lr": 0.2}
    assert told_apart([base, base | {"optim.lr": 0.3}]) == ["lr=0.1", "lr=0.3"]
    assert told_apart([base, base | {"optim.lr": 0.3, "policies.p.optim.lr": 0.4}]) == [
        "optim.lr=0.1, policies.p.optim.lr=0.2",
        "optim.lr=0.3, policies.p.optim.lr=0.4",
    ]
    assert told_apart([base, base | {"env.id": "srpo_envs/B-v1"}]) == ["A-v0", "B-v1"]
    assert told_apart([base]) == [""]


@dataclass
class Item:
    method: str
    choices: dict[str, Any] = field(default_factory=dict)
    is_labelled: bool = False
    path: Path = Path("runs/x")


def test_equal_choices_are_one_method_and_others_of_its_name_are_told_apart() -> None:
    items = [Item("A", {"k": 1}), Item("B", {"k": 1, "b": 1}), Item("A", {"k": 2}), Item("A", {"k": 1})]
    found = grouped(items)
    assert {name: [items.index(item) for item in group] for name, group in found.items()} == {
        "A (k=1)": [0, 0],
        "B": [1],
        "A (k=2)": [2],
    }


def test_a_label_is_one_method_and_refused_for_two() -> None:
    pair = [Item("mine", {"k": 1}, True), Item("mine", {"k": 1}, True)]
    assert {name: len(group) for name, group in grouped(pair).items()} == {"mine": 2}
    with pytest.raises(ConfigError, match=r"one label, 'mine', for two methods, which differ in k=1 against k=2"):
        grouped([Item("mine", {"k": 1}, True), Item("mine", {"k": 2}, True)])


def test_a_label_that_another_method_has_is_refused() -> None:
    items = [Item("mine", {"k": 1}, True), Item("mine", {"k": 1})]
    with pytest.raises(
        ConfigError, match=r"two methods would both be called 'mine'; tell them apart with --label runs/x"
    ):
        grouped(items)


def test_a_label_for_something_else_is_refused_with_the_nearest() -> None:
    check_labels({Path("runs/a"): "A"}, [Path("runs/a")])
    with pytest.raises(ConfigError, match=r"--label runs/aa=.*did you mean 'runs/a'"):
        check_labels({Path("runs/aa"): "A"}, [Path("runs/a")])
