"""Benchmarks by name, the paper's and some of programs: where each is found, how many tasks it has, how it is graded.

The table says what an evaluation needs to know; where a set is found and how its rows are read stays with its task
family (`MATH_SETS`, `QA_SETS`, `CODE_SETS`). A set comes from the hub or from a local file::

    benchmark = find_benchmark("math500")
    kwargs = benchmark.place_in("MathSolverVerifier-v0", {"num_solvers": 5}, path="math500.jsonl")
    env = srpo_envs.make("MathSolverVerifier-v0", **kwargs)
    env.tasks.num_tasks in benchmark.counts              # True
    digest_tasks(all_tasks(env.tasks))                   # '0f5c...', the same wherever the same tasks came from
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from srpo_envs import registry
from srpo_envs.errors import ConfigError, UnknownIdError, near_miss
from srpo_envs.tasks.base import Task, TaskFamily
from srpo_envs.tasks.code_formats import CODE_SETS
from srpo_envs.tasks.loading import Choice, PublishedSet
from srpo_envs.tasks.math_formats import MATH_SETS
from srpo_envs.tasks.qa_formats import QA_SETS
from srpo_envs.workflows.registered import FAMILIES

Group = Literal["math", "single-hop", "multi-hop", "code"]

_CHOOSING = tuple(field.name for field in dataclasses.fields(Choice))
"""Arguments of an environment that say which tasks it plays; everything else is about how."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkFamily:
    """What benchmarks of one kind share."""

    tasks: str
    """``module:Class`` of the task family that reads and grades them."""
    sets: Mapping[str, PublishedSet]
    """The family's table of published sets."""
    prompt: str
    """How a task is put to a role, in a few words."""
    grading: str
    """When an answer is right, in a few words."""


BENCHMARK_FAMILIES = {
    "math": BenchmarkFamily(
        tasks=FAMILIES["Math"],
        sets=MATH_SETS,
        prompt=r"the problem as published; the answer goes into \boxed{}",
        grading="equivalent to the gold answer as mathematics",
    ),
    "qa": BenchmarkFamily(
        tasks=FAMILIES["QA"],
        sets=QA_SETS,
        prompt="the question as published; the answer goes between <answer> tags",
        grading="equal to a golden answer after SQuAD's normalisation",
    ),
    "code": BenchmarkFamily(
        tasks=FAMILIES["Code"],
        sets=CODE_SETS,
        prompt="the problem as published and how the program is called; the program goes into a fenced block",
        grading="the program passes all hidden tests, run in the sandbox",
    ),
}
"""By name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """One benchmark."""

    name: str
    """Name here, of its published set, and at the beginning of its task ids."""
    title: str
    """Name in tables."""
    family: str
    """Key of `BENCHMARK_FAMILIES`."""
    group: Group
    """What it measures."""
    split: str
    """Split on the hub that is evaluated."""
    counts: tuple[int, ...]
    """Tasks that the split has; several where editions differ, the most common first."""

    @property
    def published(self) -> PublishedSet:
        """Where the set is found."""
        return BENCHMARK_FAMILIES[self.family].sets[self.name]

    @property
    def prompt(self) -> str:
        """How a task is put to a role, in a few words."""
        return BENCHMARK_FAMILIES[self.family].prompt

    @property
    def grading(self) -> str:
        """When an answer is right, in a few words."""
        return BENCHMARK_FAMILIES[self.family].grading

    @property
    def environments(self) -> list[str]:
        """Registered environments whose workflow can play it."""
        return [env_id for env_id in registry.list_envs() if _family_of(env_id) == self._tasks]

    def arguments(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return the arguments of the task family, and so of an environment, that choose this benchmark.

        Args:
            path: A local file that holds it; the hub when omitted.
        """
        where = {"split": self.split} if path is None else {"path": os.fspath(path)}
        return {"dataset": self.name, **where}

    def load(self, path: str | os.PathLike[str] | None = None) -> TaskFamily:
        """Return the tasks, without any workflow.

        Raises:
            DatasetError: a missing file, a damaged row, or nothing left.
            MissingExtraError: the hub without `datasets`, or Parquet without pyarrow.
        """
        module, _, name = self._tasks.partition(":")
        tasks: TaskFamily = getattr(importlib.import_module(module), name)(**self.arguments(path))
        return tasks

    def place_in(
        self, env_id: str, env_kwargs: Mapping[str, Any], path: str | os.PathLike[str] | None = None
    ) -> dict[str, Any]:
        """Return arguments under which an environment plays this benchmark as it would play its own tasks.

        Args:
            env_id: The environment.
            env_kwargs: Its arguments; those that choose tasks are replaced, all others stay.
            path: A local file that holds the benchmark; the hub when omitted.

        Raises:
            ConfigError: the environment plays tasks of another family, or takes no data set.
        """
        family = _family_of(env_id)
        if "dataset" not in registry.spec(env_id).arguments() or family not in (None, self._tasks):
            raise ConfigError(
                f"benchmark {self.name!r} does not fit {env_id!r}, which plays other tasks; it fits "
                f"{', '.join(item.rpartition('/')[2] for item in self.environments)}"
            )
        kept = {name: value for name, value in env_kwargs.items() if name not in _CHOOSING}
        return kept | self.arguments(path)

    @property
    def _tasks(self) -> str:
        return BENCHMARK_FAMILIES[self.family].tasks


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(name="aime24", title="AIME'24", family="math", group="math", split="train", counts=(30,)),
        Benchmark(name="aime25", title="AIME'25", family="math", group="math", split="test", counts=(30,)),
        Benchmark(name="amc23", title="AMC'23", family="math", group="math", split="test", counts=(40,)),
        Benchmark(name="math500", title="MATH500", family="math", group="math", split="test", counts=(500,)),
        Benchmark(name="minerva", title="Minerva", family="math", group="math", split="test", counts=(272,)),
        Benchmark(
            name="olympiadbench", title="OlympiadBench", family="math", group="math", split="test", counts=(675, 674)
        ),
        Benchmark(name="nq", title="NQ", family="qa", group="single-hop", split="test", counts=(3610,)),
        Benchmark(name="triviaqa", title="TriviaQA", family="qa", group="single-hop", split="test", counts=(11313,)),
        Benchmark(name="popqa", title="PopQA", family="qa", group="single-hop", split="test", counts=(14267,)),
        Benchmark(name="hotpotqa", title="HotpotQA", family="qa", group="multi-hop", split="dev", counts=(7405,)),
        Benchmark(name="2wiki", title="2Wiki", family="qa", group="multi-hop", split="dev", counts=(12576,)),
        Benchmark(name="musique", title="MuSiQue", family="qa", group="multi-hop", split="dev", counts=(2417,)),
        Benchmark(name="bamboogle", title="Bamboogle", family="qa", group="multi-hop", split="test", counts=(125,)),
        Benchmark(name="humaneval", title="HumanEval", family="code", group="code", split="test", counts=(164,)),
        Benchmark(name="mbpp", title="MBPP", family="code", group="code", split="test", counts=(500,)),
        Benchmark(
            name="livecodebench", title="LiveCodeBench v5", family="code", group="code", split="test", counts=(880,)
        ),
        Benchmark(name="deepcoder", title="DeepCoder (LCB)", family="code", group="code", split="test", counts=(279,)),
        Benchmark(name="taco", title="TACO", family="code", group="code", split="test", counts=(1000,)),
    )
}
"""By name: those of the paper's tables 1 and 2 in their order, then those of programs."""


def find_benchmark(name: str) -> Benchmark:
    """Return a benchmark by name.

    Raises:
        UnknownIdError: there is none; the message has the nearest names.
    """
    if name not in BENCHMARKS:
        raise UnknownIdError(f"no benchmark {name!r}{near_miss(name, BENCHMARKS)}; `srpo benchmarks` lists them")
    return BENCHMARKS[name]


def all_tasks(tasks: TaskFamily, limit: int | None = None) -> Iterator[Task]:
    """Yield the tasks of a family in order, or the first `limit` of them."""
    size = tasks.num_tasks if limit is None else min(limit, tasks.num_tasks)
    return (tasks.task(index) for index in range(size))


def digest_tasks(tasks: Iterable[Task]) -> str:
    """Return a SHA-256 digest of questions and golden answers, in hexadecimal.

    Order, ids and white space do not count, so that the same tasks have the same digest from whichever source.
    """
    rows = sorted(json.dumps([" ".join(task.question.split()), task.gold], sort_keys=True) for task in tasks)
    return hashlib.sha256("\n".join(rows).encode("ascii")).hexdigest()


def _family_of(env_id: str) -> str | None:
    """The task family of an environment; None where its factory does not say."""
    entry_point = registry.spec(env_id).entry_point
    return entry_point.family if isinstance(entry_point, registry.Pairing) else None
