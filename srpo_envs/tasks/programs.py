"""Programming problems from published sets, from files of your own, or from a small sample shipped with the package."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from srpo_envs.errors import DatasetError, UnreadableGoldError, near_miss
from srpo_envs.grading.code import CallCase, Case, CheckCase, CodeTests, ScriptCase, judge
from srpo_envs.parsing import parse_code_block
from srpo_envs.prompting import load_prompt
from srpo_envs.sandbox import Isolation, Limits
from srpo_envs.sandbox.shared import open_sandbox
from srpo_envs.schedule import Reply
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.code_formats import CODE_SETS, OWN_SET, CodeSet, read_question, read_solution, read_tests
from srpo_envs.tasks.loading import Choice, LoadedTasks, kept_info
from srpo_envs.tasks.rows import Row
from srpo_envs.tasks.team_context import write_team_context

_MAX_NEW_TOKENS = {"verifier": 2048, "evaluator": 2048, "selector": 2048, "orchestrator": 2048, "router": 512}
_PROGRAM_TOKENS = 4096
_KEPT_FIELDS = ("task_id", "question_id", "id", "title", "question_title", "platform", "source", "difficulty", "url")


Reward = Literal["all", "fraction"]
"""What is paid: 1 for a program that passes all tests, or the share of the tests that pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grading:
    """How programs are run and what they earn; the arguments of `Programs` say what each field means."""

    reward: Reward
    """What a program earns."""
    max_tests: int | None
    """Most tests of a problem."""
    limits: Limits
    """Of one test."""
    tolerance: float | None
    """Of numbers."""
    isolation: Isolation
    """Of the sandbox."""
    packages: tuple[str, ...]
    """What programs may import."""


@dataclass(frozen=True, slots=True)
class ProgramTask(Task):
    """A problem with its hidden tests, which are no part of records: only this process has them."""

    packed_tests: bytes = b""
    """Compressed, since sets have gigabytes of them; `unpack_tests` reads them."""


class Programs(LoadedTasks[CodeSet]):
    r"""A set of programming problems as a task family: the last fenced Python block is run on hidden tests.

    Args:
        dataset: A name of `CODE_SETS`; ``sample``, the problems shipped with the package; ``custom`` for a file of
            your own; or any hub id (``owner/name``).
        path: A local ``.json``, ``.jsonl`` or ``.parquet`` file holding the set, instead of the hub.
        split: A split of the hub's; or, with `holdout`, ``train`` or ``test``.
        holdout: Share of the problems, chosen by a digest of each problem's text, that is the test part; the rest is
            the train part. The parts never overlap, whatever the order or the length of the file.
        config: Configuration of a hub id.
        reward: ``all`` pays 1 for a program that passes all tests, ``fraction`` the share of the tests that pass.
        max_tests: Run at most so many tests of a problem, those with the longest inputs; all when omitted.
        test_limits: What one test may use, by the field names of `srpo_envs.sandbox.Limits`.
        tolerance: Greatest absolute or relative error of numbers; exact when omitted.
        isolation: How the sandbox shuts programs in: ``namespaces``, or knowingly the weaker ``rlimits``.
        packages: Importable packages that programs may import beside the standard library.
        skip_unreadable: Leave out rows whose tests cannot be used, and count them in `report`.
        drop_duplicates: Keep only the first of equal problems. Otherwise all are kept and named in `report`.
        size: Take the first `size` problems.

    Raises:
        UnknownIdError: an unknown set.
        UnreadableGoldError: tests that cannot be used; names file, row, value and remedy.
        DatasetError: a missing file, a damaged row, or nothing left.
        MissingExtraError: a hub id without `datasets`, or Parquet without pyarrow.
        ValueError: arguments that do not go together.
    """

    parse_answer = staticmethod(parse_code_block)

    def __init__(
        self,
        dataset: str = "sample",
        *,
        path: str | os.PathLike[str] | None = None,
        split: str | None = None,
        holdout: float = 0.0,
        config: str | None = None,
        reward: Reward = "all",
        max_tests: int | None = None,
        test_limits: Mapping[str, float] | None = None,
        tolerance: float | None = None,
        isolation: Isolation = "namespaces",
        packages: Sequence[str] = (),
        skip_unreadable: bool = False,
        drop_duplicates: bool = False,
        size: int | None = None,
    ) -> None:
        if reward not in ("all", "fraction"):
            raise ValueError(f"reward: expected 'all' or 'fraction', got {reward!r}")
        if max_tests is not None and max_tests < 1:
            raise ValueError(f"max_tests: expected at least 1, got {max_tests}")
        choice = Choice(
            dataset=dataset,
            path=path,
            split=split,
            holdout=holdout,
            config=config,
            skip_unreadable=skip_unreadable,
            drop_duplicates=drop_duplicates,
            size=size,
        )
        super().__init__("code", choice, CODE_SETS, OWN_SET, _read_problem)
        self.grading = Grading(
            reward=reward,
            max_tests=max_tests,
            limits=_read_limits(test_limits or {}),
            tolerance=tolerance,
            isolation=isolation,
            packages=tuple(packages),
        )

    def prompt(self, role: str) -> str:
        """Return a role's template in three parts: observation, team context, role.

        A worker sees its part of a plan and not the problem, so its template has the role's part only.
        """
        return load_prompt("code", *(() if role == "worker" else ("observation", "team_context")), role)

    def stop(self, role: str) -> tuple[str, ...]:
        """Return no stop text: responses end with the policy's own end-of-sequence token."""
        return ()

    def max_new_tokens(self, role: str) -> int:
        """Return a limit that leaves room for a program and the thinking before it, or for a judgement of one."""
        return _MAX_NEW_TOKENS.get(role, _PROGRAM_TOKENS)

    def grade(self, task: Task, answer: Any) -> float:
        """Return the reward of a program, by its tests.

        Raises:
            SandboxError: programs cannot be run safely; nothing is known about this one.
            DatasetError: the task comes from a record, and the set no longer has it.
        """
        found = task if isinstance(task, ProgramTask) else self._by_id.get(task.task_id)
        if found is None:
            raise DatasetError(f"task {task.task_id!r} is not in {self.name!r}, so its tests are unknown")
        return _score(str(answer), found.packed_tests, self.grading)

    @functools.cached_property
    def _by_id(self) -> dict[str, ProgramTask]:
        """For episodes that go on from a record: it holds the task without its tests."""
        return {task.task_id: task for task in self._tasks if isinstance(task, ProgramTask)}

    def render_context(self, replies: Sequence[Reply]) -> str:
        """Write what the team committed, see `write_team_context`."""
        return write_team_context(replies)


def _read_limits(fields: Mapping[str, float]) -> Limits:
    known = [field.name for field in dataclasses.fields(Limits)]
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"test_limits: no limit {name!r}{near_miss(name, known)}")
        if not value > 0:
            raise ValueError(f"test_limits: {name} must be above 0, got {value!r}")
    return Limits(**fields)  # type: ignore[arg-type]


def _read_problem(row: Row, spec: CodeSet) -> Task:
    try:
        tests = read_tests(row, spec.tests)
        packed = pack_tests(tests)
    except DatasetError as error:
        raise UnreadableGoldError(str(error)) from error
    solution = read_solution(row, spec.solution)
    info = {**kept_info(row, _KEPT_FIELDS), "num_tests": len(tests.cases)}
    return ProgramTask("", read_question(row, spec.question, tests), solution or (), info, packed)


@functools.lru_cache(maxsize=4096)
def _score(source: str, packed_tests: bytes, grading: Grading) -> float:
    """Run a program on its tests and return what it earns; equal programs of a group run once."""
    tests = _longest_inputs(unpack_tests(packed_tests), grading.max_tests)
    verdict = judge(
        source,
        dataclasses.replace(tests, tolerance=grading.tolerance),
        sandbox=open_sandbox(grading.isolation, grading.packages),
        limits=grading.limits,
        stop_at_failure=grading.reward == "all",
    )
    return float(verdict.passed) if grading.reward == "all" else verdict.num_passed / verdict.num_tests


def _longest_inputs(tests: CodeTests, most: int | None) -> CodeTests:
    """Leave only the tests with the longest inputs, in their order."""
    if most is None or len(tests.cases) <= most:
        return tests
    longest = sorted(range(len(tests.cases)), key=lambda index: -_input_length(tests.cases[index]))[:most]
    return dataclasses.replace(tests, cases=tuple(tests.cases[index] for index in sorted(longest)))


def _input_length(case: Case) -> int:
    match case:
        case ScriptCase():
            return len(case.stdin)
        case CallCase():
            return len(json.dumps(case.args))
        case CheckCase():
            return len(case.code)


# --- storage ------------------------------------------------------------------------------------------------------

_KINDS: dict[str, type[Case]] = {kind.__name__: kind for kind in (ScriptCase, CallCase, CheckCase)}


def pack_tests(tests: CodeTests) -> bytes:
    """Return tests as compressed JSON.

    Raises:
        DatasetError: a value in them is none of JSON's.
    """
    fields = {"kind": type(tests.cases[0]).__name__, **dataclasses.asdict(tests)}
    try:
        return zlib.compress(json.dumps(fields).encode(), level=1)
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"holds tests that are no JSON values: {error}") from None


def unpack_tests(packed: bytes) -> CodeTests:
    """Return the tests of `pack_tests`."""
    fields = json.loads(zlib.decompress(packed))
    kind = _KINDS[fields.pop("kind")]
    cases = [{**case, "args": tuple(case["args"])} if kind is CallCase else case for case in fields.pop("cases")]
    return CodeTests(cases=tuple(kind(**case) for case in cases), **fields)
