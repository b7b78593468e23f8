"""From a study to its runs: every workflow with every way of sharing, every model, every seed, and the controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from srpo_envs.errors import ConfigError, SrpoError
from srpo_train.config import read_toml
from srpo_train.roles import ANY_ROLE
from srpo_train.study.spec import Control, Sharing, Study, Workflow
from srpo_train.sweep import Cell, Run
from srpo_train.sweep.cells import resolve, slug
from srpo_train.sweep.spec import merge

CONTROL = "single agent"
"""What the control is called where a workflow has its label."""

_SHARED_ID = "team"

# The model before training is a control too, so it has to be measured.
_MEASURED = {"eval": {"at_start": True}}


def list_study_runs(study: Study) -> list[Run]:
    """Resolve all cells of a study, first all with the first seed, then with the next.

    Raises:
        ConfigError: what is wrong with each cell that cannot be resolved, or two that share a directory.
    """
    return resolve(list(_cells(study)), seeds=study.seeds, out=study.out)


def _cells(study: Study) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Yield every cell and the recipe it makes, not yet checked."""
    for label in study.models:
        for workflow in study.workflows:
            recipe, model = _recipe(study, workflow), study.model_for(label, workflow.task)
            for sharing in study.sharing:
                if sharing != "mixed" or workflow.mixed:
                    groups = _groups(workflow, sharing, recipe)
                    yield _cell(workflow, label, workflow.label, sharing), _with_policies(recipe, groups, model)
        for control in study.controls:
            groups, model = {_SHARED_ID: (ANY_ROLE,)}, study.model_for(label, control.task)
            yield _cell(control, label, CONTROL, ""), _with_policies(_recipe(study, control), groups, model)


def _cell(item: Workflow | Control, model: str, workflow: str, sharing: str) -> Cell:
    settings = {"task": item.task, "model": model, "workflow": workflow, "sharing": sharing}
    named = [part for part in (workflow, sharing, item.task, model) if part]
    return Cell(
        label=", ".join(named),
        folder="_".join(map(slug, named)),
        group=f"{item.task}, {model}",
        settings=settings,
    )


def _recipe(study: Study, item: Workflow | Control) -> dict[str, Any]:
    below = merge(read_toml(Path(item.recipe)), study.set)
    return merge(merge(below, item.set), _MEASURED)


def _with_policies(recipe: Mapping[str, Any], groups: Mapping[str, Sequence[str]], model: str) -> dict[str, Any]:
    """The recipe with a policy for each group of roles, all with the settings of its first one and the same model."""
    settings = dict(next(iter(recipe.get("policies", {}).values()), {})) | {"model": model}
    roles = {role: policy_id for policy_id, members in groups.items() for role in members}
    return dict(recipe) | {"policies": dict.fromkeys(groups, settings), "roles": roles}


def _groups(workflow: Workflow, sharing: Sharing, recipe: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Policy id to the roles it plays.

    Raises:
        ConfigError: the groups of a mixed team are not a partition of the workflow's roles.
    """
    if sharing == "shared":
        return {_SHARED_ID: (ANY_ROLE,)}
    roles = _roles_of(workflow, recipe)
    if sharing == "isolated":
        return {role: (role,) for role in roles}
    if sorted(role for group in workflow.mixed for role in group) != sorted(roles):
        raise ConfigError(
            f"workflow {workflow.label!r}: mixed = {[list(group) for group in workflow.mixed]} should name each of its "
            f"roles once; they are {', '.join(roles)}"
        )
    return {"-".join(group): group for group in workflow.mixed}


def _roles_of(workflow: Workflow, recipe: Mapping[str, Any]) -> list[str]:
    import srpo_envs

    world = recipe.get("env", {})
    try:
        return list(srpo_envs.make(world["id"], **world.get("kwargs", {})).roles)
    except (SrpoError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"workflow {workflow.label!r}: its environment cannot be made ({error})") from error
