"""What a study file says.

For example::

    sharing = ["shared", "isolated", "mixed"]
    seeds = [0, 1, 2]

    [models]                                     # label = what `policies.<id>.model` of a recipe may be
    tiny = "builtin:tiny-workflows"

    [set]                                        # keys of the recipes that are changed for all runs
    train.token_budget = 100_000

    [[workflows]]
    label = "Voting"
    task = "arithmetic"
    recipe = "../recipes/tiny-voting.toml"       # relative to this file
    mixed = [["generator"], ["aggregator"]]      # the roles of each policy where sharing is mixed

    [[controls]]                                 # the single agent of a task
    task = "arithmetic"
    recipe = "../recipes/tiny-workflows-single-agent.toml"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt, Strict, model_validator

from srpo_train.config import check_section, read_toml
from srpo_train.section import Section

Sharing = Literal["shared", "isolated", "mixed"]
"""One policy for all roles, one for each role, or one for each of the groups that a workflow names."""

_Name = Annotated[str, Field(min_length=1)]


class Workflow(Section):
    """A team that is studied."""

    label: _Name
    """Its name in tables."""
    task: _Name
    """What it is asked to do; compared with the control of the same task."""
    recipe: _Name
    """Recipe, relative to the study file; its first policy's settings are those of every policy."""
    mixed: Annotated[tuple[Annotated[tuple[str, ...], Strict(False)], ...], Strict(False)] = ()
    """Roles of each policy where sharing is mixed; without it the workflow has no mixed cell."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the recipe that it changes."""


class Control(Section):
    """The single agent of a task."""

    task: _Name
    """The task."""
    recipe: _Name
    """Recipe, relative to the study file."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the recipe that it changes."""


T = TypeVar("T", Workflow, Control)


class Study(Section):
    """A study, completely described."""

    out: str
    """Directory of the study; `runs/` and the name of its file when left out."""
    models: Annotated[dict[str, str | dict[str, str]], Field(min_length=1)]
    """Label to model, a hub id, a directory or `builtin:<name>`; or to a table with the model of each task."""
    workflows: Annotated[tuple[Workflow, ...], Strict(False), Field(min_length=1)]
    """The teams."""
    controls: Annotated[tuple[Control, ...], Strict(False)] = ()
    """One single agent for each task; a task may have none."""
    sharing: Annotated[tuple[Sharing, ...], Strict(False), Field(min_length=1)] = ("shared", "isolated")
    """Ways to share policies among roles."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the recipes that are changed for all runs; those of a workflow win."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Strict(False), Field(min_length=1)] = (0, 1, 2)
    """`seed` of the runs of each cell."""
    processes: PositiveInt = 2
    """Runs that train at once."""

    @model_validator(mode="after")
    def _everything_is_named_once(self) -> Study:
        named: dict[str, list[str]] = {
            "workflows": [f"{workflow.label} on {workflow.task}" for workflow in self.workflows],
            "controls": [control.task for control in self.controls],
            "sharing": list(self.sharing),
            "seeds": list(map(str, self.seeds)),
        }
        for name, items in named.items():
            if twice := sorted({item for item in items if items.count(item) > 1}):
                raise ValueError(f"{name}: should differ from each other, got {twice[0]!r} twice")
        return self

    @model_validator(mode="after")
    def _every_task_has_a_model(self) -> Study:
        for label, model in self.models.items():
            if isinstance(model, dict) and (without := {item.task for item in self.workflows} - model.keys()):
                raise ValueError(f"models: {label!r} has no model for the task {min(without)!r}")
        return self

    @model_validator(mode="after")
    def _controls_have_workflows(self) -> Study:
        tasks = {workflow.task for workflow in self.workflows}
        for control in self.controls:
            if control.task not in tasks:
                raise ValueError(f"controls: no workflow has the task {control.task!r}; there are {sorted(tasks)}")
        return self

    def model_for(self, label: str, task: str) -> str:
        """Return the model with this label on a task."""
        model = self.models[label]
        return model if isinstance(model, str) else model[task]


def load_study(path: str | Path, changes: dict[str, Any] | None = None) -> Study:
    """Read a study file and check it; its cells are checked by `list_study_runs`.

    Args:
        path: The file.
        changes: Fields of `Study` that replace those of the file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value cannot be used.
    """
    path = Path(path)
    data = {"out": f"runs/{path.stem}"} | read_toml(path) | dict(changes or {})
    study = check_section(Study, data, source=str(path))
    return study.model_copy(
        update={
            "workflows": tuple(_from(path.parent, workflow) for workflow in study.workflows),
            "controls": tuple(_from(path.parent, control) for control in study.controls),
        }
    )


def _from(folder: Path, item: T) -> T:
    """The item with its recipe's path relative to the working directory."""
    return item.model_copy(update={"recipe": str(folder / item.recipe)})
