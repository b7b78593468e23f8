"""What an evaluation evaluates, as one file: `plan.json` of an evaluation directory.

Samples of two plans must never meet in one directory. Seeds and benchmarks may be added to a plan, since what is
there already stays as it is; anything else makes another evaluation, which is refused with what differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

import srpo_envs
from srpo_envs import registry
from srpo_envs.benchmarks import all_tasks, digest_tasks
from srpo_envs.budget import Budget
from srpo_envs.core import SetEnv
from srpo_envs.errors import ConfigError, RecordError
from srpo_envs.storing import replace_whole
from srpo_train.engines.base import Sampling
from srpo_train.run_dir import locked

PLAN_FILE = "plan.json"
"""Name of the file in an evaluation directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """One set of tasks under the workflow that is evaluated."""

    env_id: str
    """The environment."""
    env_kwargs: Mapping[str, Any]
    """Its arguments, the tasks among them."""
    num_tasks: int
    """Tasks to evaluate, the environment's first ones."""
    set_size: int
    """Tasks the environment has."""
    expected_tasks: int | None = None
    """Tasks the published set holds; None where that is not known."""
    digest: str
    """Of the questions and golden answers that are evaluated."""

    @classmethod
    def open(
        cls,
        env_id: str,
        env_kwargs: Mapping[str, Any],
        *,
        limit: int | None = None,
        expected_counts: tuple[int, ...] = (),
    ) -> World:
        """Look at the tasks of an environment.

        Args:
            env_id: The environment.
            env_kwargs: Its arguments.
            limit: Evaluate the first so many tasks; all when omitted.
            expected_counts: Tasks the published set may hold, the most common first.

        Raises:
            ConfigError: there are no tasks, two share an id, or an argument is wrong.
            DatasetError: the data cannot be read.
        """
        env = srpo_envs.make(env_id, **env_kwargs)
        tasks = list(all_tasks(env.tasks, limit))
        size, ids = env.tasks.num_tasks, tuple(task.task_id for task in tasks)
        if not ids:
            raise ConfigError(f"{env_id}: {env.tasks.name!r} has no tasks to evaluate")
        if len(set(ids)) < len(ids):
            twice = next(task_id for task_id in ids if ids.count(task_id) > 1)
            raise ConfigError(f"{env_id}: two tasks of {env.tasks.name!r} have the id {twice!r}; ids must tell them")
        return cls(
            env_id=env.env_id,
            env_kwargs=env_kwargs,
            num_tasks=len(ids),
            set_size=size,
            expected_tasks=size if size in expected_counts else next(iter(expected_counts), None),
            digest=digest_tasks(tasks),
        )

    @property
    def has_unexpected_size(self) -> bool:
        """Whether the set that was loaded is not the published one."""
        return self.expected_tasks not in (None, self.set_size)

    @property
    def task_ids(self) -> list[str]:
        """Ids of the tasks to evaluate, in the environment's order."""
        return [task.task_id for task in all_tasks(self.make_env().tasks, self.num_tasks)]

    @property
    def make_env(self) -> Callable[[], SetEnv]:
        """Makes the environment."""
        return functools.partial(srpo_envs.make, self.env_id, **self.env_kwargs)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalPlan:
    """An evaluation: who answers which tasks how often."""

    source: str
    """What is evaluated, as it was named."""
    method: str
    """Label of the row this makes in a table."""
    model: str
    """What answers: a base model, an endpoint, an agent."""
    checkpoint: int | None = None
    """Training step of a run's weights; None for anything else."""
    worlds: Mapping[str, World]
    """By the name of the benchmark."""
    samples: int
    """k: samples of each task under each seed."""
    seeds: tuple[int, ...] = (0,)
    """Each draws samples of its own."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are drawn."""
    software: Mapping[str, Any] = field(default_factory=dict)
    """With what the evaluation began: versions and revision."""

    def __post_init__(self) -> None:
        """Refuse a plan that asks for nothing, and names that cannot be folders.

        Raises:
            ConfigError: no benchmark, seed or sample, a seed twice, different budgets, or a name with a path separator.
        """
        if self.samples < 1 or not self.seeds or not self.worlds:
            raise ConfigError("an evaluation needs at least one benchmark, one seed and one sample")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds: each once, got {', '.join(map(str, self.seeds))}")
        budgets = [Budget.of(world.env_kwargs.get("budget")) for world in self.worlds.values()]
        if any(budget != budgets[0] for budget in budgets):
            told = ", ".join(f"{name} {budget.limits}" for name, budget in zip(self.worlds, budgets, strict=True))
            raise ConfigError(f"budget: the same for every benchmark of an evaluation, got {told}")
        for name in self.worlds:
            if "/" in name or "\\" in name or name.startswith("."):
                raise ConfigError(f"benchmark {name!r}: the name becomes a folder; leave out slashes and leading dots")

    @property
    def _env_ids(self) -> set[str]:
        return {world.env_id for world in self.worlds.values()}

    def _workflow(self, env_id: str) -> dict[str, Any]:
        """How the tasks of an environment are worked on; empty where its factory does not tell that from the tasks."""
        made_by = registry.spec(env_id).entry_point
        world = next(world for world in self.worlds.values() if world.env_id == env_id)
        return made_by.split(world.env_kwargs)[1] if isinstance(made_by, registry.Pairing) else {}

    @property
    def identity(self) -> str:
        """A few letters that differ between plans whose samples must not meet."""
        text = json.dumps(_identity(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()

    def joined(self, other: EvalPlan, directory: Path) -> EvalPlan:
        """Return this plan with the benchmarks and seeds of another besides its own.

        Raises:
            ConfigError: they differ in anything else; names it.
        """
        mine, theirs = _flat(_identity(self)), _flat(_identity(other))
        for name in self.worlds.keys() & other.worlds.keys():
            mine |= _flat(_plain(self)["worlds"][name], f"{name}.")
            theirs |= _flat(_plain(other)["worlds"][name], f"{name}.")
        for env_id in self._env_ids & other._env_ids:  # the same workflow for all, or their average is of nothing
            mine |= _flat(self._workflow(env_id), f"{env_id}.")
            theirs |= _flat(other._workflow(env_id), f"{env_id}.")
        if different := sorted(key for key in mine | theirs if mine.get(key) != theirs.get(key)):
            told = "; ".join(f"{key} is {mine.get(key)!r}, not {theirs.get(key)!r}" for key in different)
            raise ConfigError(f"{directory}: holds another evaluation, whose {told}; choose another --out")
        return dataclasses.replace(
            self,
            worlds={**self.worlds, **other.worlds},
            seeds=tuple(sorted({*self.seeds, *other.seeds})),
            method=other.method,
        )


@contextlib.contextmanager
def claimed_eval_dir(directory: Path, plan: EvalPlan) -> Iterator[EvalPlan]:
    """Make a directory the evaluation's own while the body runs.

    Yields:
        The plan of the directory: this one, with what was evaluated there before.

    Raises:
        ConfigError: another process is writing there, or the directory holds another evaluation.
        RecordError: the plan of the directory cannot be read.
        StorageFullError: there is no room for the plan.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory, "another process is evaluating there; wait for it, or choose another --out"):
        file = directory / PLAN_FILE
        whole = read_plan(directory).joined(plan, directory) if file.is_file() else plan
        replace_whole(file, [_PLAN.dump_json(whole, indent=1), b"\n"])
        yield whole


def read_plan(directory: Path) -> EvalPlan:
    """Return the plan of an evaluation directory.

    Raises:
        RecordError: there is none, or it is damaged.
    """
    file = directory / PLAN_FILE
    try:
        return _PLAN.validate_json(file.read_bytes())
    except OSError as error:
        raise RecordError(f"{file}: no plan to read ({error}); is it the directory of an evaluation?") from error
    except pydantic.ValidationError as error:
        raise RecordError(f"{file}: not the plan of an evaluation: {error.errors()[0]['msg']}") from error


_PLAN = pydantic.TypeAdapter(EvalPlan)


def _plain(plan: EvalPlan) -> dict[str, Any]:
    """The plan as it reads from its file."""
    content: dict[str, Any] = json.loads(_PLAN.dump_json(plan))
    return content


def _identity(plan: EvalPlan) -> dict[str, Any]:
    """What must be the same for samples to belong together, tasks apart."""
    content = _plain(plan)
    return {name: content[name] for name in ("source", "model", "checkpoint", "samples", "sampling")}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix.rstrip("."): value}
    return {key: item for name, part in value.items() for key, item in _flat(part, f"{prefix}{name}.").items()}
