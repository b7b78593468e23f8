"""Plans: what a world is opened to, and which plans mean something."""

from __future__ import annotations

import dataclasses
import json

import pytest
from factories import NumberTasks

import srpo_envs
from srpo_envs import registry
from srpo_envs.errors import ConfigError, DatasetError, RecordError
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_train.evaluation import World, read_plan


@pytest.fixture
def register():
    """Registers environments for one test."""
    names = []

    def add(name, factory):
        srpo_envs.register(name, factory)
        names.append(name)
        return name

    yield add
    for name in names:
        del registry._specs[name]


def test_a_world_knows_its_tasks(data) -> None:
    world = World.open("MathSingleAgent-v0", {"dataset": "custom", "path": str(data)}, limit=3, expected_counts=(5, 4))
    assert world.env_id == "srpo_envs/MathSingleAgent-v0"
    assert (world.num_tasks, world.set_size, world.expected_tasks, world.has_unexpected_size) == (3, 4, 4, False)
    assert len(set(world.task_ids)) == 3
    assert world.make_env().tasks.num_tasks == 4


def test_another_number_of_tasks_than_published_is_noticed(data) -> None:
    world = World.open("MathSingleAgent-v0", {"dataset": "custom", "path": str(data)}, expected_counts=(30, 31))
    assert (world.expected_tasks, world.has_unexpected_size) == (30, True)


def test_benchmarks_that_are_worked_on_in_other_ways_do_not_share_a_directory(make_plan, data, tmp_path) -> None:
    def plan(name, *, env_id="MathSolverVerifier-v0", **kwargs):
        world = World.open(env_id, {"dataset": "custom", "path": str(data), **kwargs})
        return dataclasses.replace(make_plan(), worlds={name: world})

    first = plan("a", num_solvers=2, budget={"calls": 9})
    joined = first.joined(plan("b", num_solvers=2, budget={"calls": 9}), tmp_path)
    assert list(joined.worlds) == ["a", "b"]
    with pytest.raises(ConfigError, match=r"whose srpo_envs/MathSolverVerifier-v0.num_solvers is 2, not 3"):
        first.joined(plan("b", num_solvers=3, budget={"calls": 9}), tmp_path)
    with pytest.raises(ConfigError, match=r"MathSolverVerifier-v0.budget.calls is 9, not 8"):
        first.joined(plan("b", num_solvers=2, budget={"calls": 8}), tmp_path)
    with pytest.raises(ConfigError, match=r"budget: the same for every benchmark of an evaluation, got a .*9.*, b .*8"):
        first.joined(plan("b", env_id="MathSingleAgent-v0", budget={"calls": 8}), tmp_path)


def test_worlds_without_tasks_or_with_two_of_one_id_are_refused(register, data) -> None:
    class Twins(NumberTasks):
        def task(self, index):
            return dataclasses.replace(super().task(index), task_id="twin")

    empty = register("tests/Empty-v0", lambda: SingleAgent(NumberTasks(0)))
    twins = register("tests/Twins-v0", lambda: SingleAgent(Twins(3)))
    with pytest.raises(ConfigError, match="tests/Empty-v0: 'numbers' has no tasks"):
        World.open(empty, {})
    with pytest.raises(ConfigError, match="two tasks of 'numbers' have the id 'twin'"):
        World.open(twins, {})
    data.write_text("")
    with pytest.raises(DatasetError, match="no task left of 0 rows"):
        World.open("MathSingleAgent-v0", {"dataset": "custom", "path": str(data)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 0}, "at least one benchmark, one seed and one sample"),
        ({"seeds": ()}, "at least one benchmark"),
        ({"seeds": (1, 2, 1)}, "seeds: each once, got 1, 2, 1"),
    ],
)
def test_a_plan_that_asks_for_nothing_is_refused(make_plan, fields, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(**fields)


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", ".hidden"])
def test_a_name_that_is_no_folder_is_refused(make_plan, name) -> None:
    with pytest.raises(ConfigError, match="the name becomes a folder"):
        make_plan(name)


def test_the_identity_tells_plans_whose_samples_must_not_meet(make_plan) -> None:
    plan = make_plan()
    assert plan.identity == make_plan("a", "b", seeds=(4,)).identity
    assert plan.identity == dataclasses.replace(plan, method="x", software={"time": "later"}).identity
    others = [make_plan(samples=2), dataclasses.replace(plan, source="x"), dataclasses.replace(plan, checkpoint=3)]
    assert len({plan.identity, *(other.identity for other in others)}) == 4


def test_the_stored_plan_is_read_again(make_plan, run_plan) -> None:
    plan = make_plan(software={"python": "3"})
    _, directory, _ = run_plan(plan)
    assert read_plan(directory) == plan
    content = json.loads((directory / "plan.json").read_text())
    assert content["worlds"]["own"]["env_kwargs"]["dataset"] == "custom"
    with pytest.raises(RecordError, match="is it the directory of an evaluation"):
        read_plan(directory / "own")
