"""Judges model-written programs by their tests, in a sandbox.

What is expected never enters the box of a program. A program is given inputs and gives back text or plain data, which
this process compares; test code that has to call the program itself, as in HumanEval, runs in a second box and reaches
the program through the keeper. A program that takes over its box can therefore change its own answers and nothing else:
there is no verdict to forge, no comparison to override and no test to read. Right answers by whatever means are right.

Scripts run in a new process for every test. Calls share one process, in which the source was loaded once as a module,
until a call goes over its limits; then the next one starts again. Time limits hold for every test by itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from srpo_envs.errors import DatasetError
from srpo_envs.sandbox import Limits, Run, Sandbox, Session
from srpo_envs.sandbox.keeper.plain import encode
from srpo_envs.sandbox.shared import open_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCase:
    """A test by standard input and output.

    Example:
        >>> ScriptCase(stdin="2 3", stdout="5").stdout
        '5'
    """

    stdin: str
    """All of the program's input."""
    stdout: str
    """What it must print; trailing blanks of lines and trailing empty lines do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """A test by one call of a function.

    Example:
        >>> CallCase(args=(2, 3), expected=5).expected
        5
    """

    args: tuple[Any, ...]
    """Positional arguments: plain data."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments: plain data."""
    expected: Any
    """What it must return: plain data. Data sets in JSON know no tuples, so a tuple equals the list of its items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCase:
    """A test by trusted test code that calls the program.

    Example:
        >>> CheckCase(code="assert candidate(2, 3) == 5").code
        'assert candidate(2, 3) == 5'
    """

    code: str
    """Passes unless it raises. The function is there under its own name and as `candidate`."""


Case = ScriptCase | CallCase | CheckCase


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """The tests of one problem, all of one kind.

    Raises:
        DatasetError: there is no case, kinds are mixed, or calls lack the name of their function.

    Example:
        >>> CodeTests(cases=(CallCase(args=(2, 3), expected=5),), function="add").function
        'add'
    """

    cases: tuple[Case, ...]
    """Run in this order."""
    function: str = ""
    """What calls and checks call: a function of the program, or a method of its class `Solution`."""
    support: str = ""
    """Trusted code that runs before the first check: imports and helper functions of the test code."""
    tolerance: float | None = None
    """Greatest absolute or relative error of numbers, where the problem allows one; None compares exactly."""

    def __post_init__(self) -> None:
        kinds = {type(case) for case in self.cases}
        if len(kinds) != 1:
            names = sorted(kind.__name__ for kind in kinds)
            raise DatasetError(f"a problem needs test cases of one kind, got {' and '.join(names) or 'none'}")
        if kinds != {ScriptCase} and not self.function.isidentifier():
            raise DatasetError(f"calls and checks need the name of a function, got {self.function!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a program passes its tests."""

    passed: bool
    """All tests passed."""
    num_passed: int
    """Tests that passed; those after the first failure count only when they were run."""
    num_tests: int
    """Tests of the problem."""
    reason: str
    """Of the first failure, short and stable: `wrong answer`, or the status of the run; empty when all passed."""
    runs: tuple[Run, ...]
    """What the program did, one run a test that was run. Nothing in it tells what was expected."""


def judge(
    source: str,
    tests: CodeTests,
    *,
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
    stop_at_failure: bool = True,
) -> Verdict:
    """Run a program against its tests.

    Args:
        source: the program, as the model wrote it.
        tests: what it must do.
        sandbox: where it runs; by default the one that the process shares, `open_sandbox("namespaces")`.
        limits: of every test by itself; by default the sandbox's.
        stop_at_failure: leave the tests after the first failure.

    Raises:
        SandboxError: the sandbox broke; nothing is known about the program.
    """
    runs: list[Run] = []
    failures: list[str] = []
    with (sandbox or open_sandbox("namespaces")).session(source, limits) as session:
        for case in tests.cases:
            run = _run_case(session, case, tests)
            runs.append(run)
            reason = _failure(run, case, tests.tolerance)
            failures += [reason] if reason else []
            if reason and stop_at_failure:
                break
    return Verdict(
        passed=not failures,
        num_passed=len(runs) - len(failures),
        num_tests=len(tests.cases),
        reason=failures[0] if failures else "",
        runs=tuple(runs),
    )


def judge_many(
    pairs: Sequence[tuple[str, CodeTests]], *, sandbox: Sandbox | None = None, limits: Limits | None = None
) -> list[Verdict]:
    """Judge programs, as many at once as the sandbox has workers; the verdicts come in the order of the pairs.

    Raises:
        SandboxError: the sandbox broke.
    """
    used = sandbox or open_sandbox("namespaces")
    with ThreadPoolExecutor(used.num_workers) as threads:
        return list(threads.map(lambda pair: judge(*pair, sandbox=used, limits=limits), pairs))


def _run_case(session: Session, case: Case, tests: CodeTests) -> Run:
    match case:
        case ScriptCase():
            return session.run(case.stdin)
        case CallCase():
            return session.call(tests.function, case.args, case.kwargs)
        case CheckCase():
            return session.check(case.code, function=tests.function, support=tests.support)


def _failure(run: Run, case: Case, tolerance: float | None) -> str:
    """Return why a test failed, nothing when it passed."""
    if run.status != "ok":
        return "wrong answer" if run.status == "failed" else run.status
    match case:
        case ScriptCase():
            is_right = same_text(run.stdout, case.stdout, tolerance)
        case CallCase():
            is_right = same_value(run.value, case.expected, tolerance)
        case CheckCase():
            is_right = True
    return "" if is_right else "wrong answer"


# --- comparison ---------------------------------------------------------------------------------------------------


def same_text(given: str, expected: str, tolerance: float | None = None) -> bool:
    """Whether two outputs agree but for trailing blanks, and for small errors of numbers where some are allowed."""
    given_lines, expected_lines = _lines(given), _lines(expected)
    if given_lines == expected_lines:
        return True
    if tolerance is None or len(given_lines) != len(expected_lines):
        return False
    return all(_same_words(*pair, tolerance) for pair in zip(given_lines, expected_lines, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_words(given: str, expected: str, tolerance: float) -> bool:
    given_words, expected_words = given.split(), expected.split()
    return len(given_words) == len(expected_words) and all(
        mine == theirs or _same_number(_number(mine), _number(theirs), tolerance)
        for mine, theirs in zip(given_words, expected_words, strict=True)
    )


def _number(word: str) -> float:
    """Return the number a word spells, else one that equals none."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def _same_number(given: float, expected: float, tolerance: float | None) -> bool:
    if given == expected:
        return True
    try:
        return tolerance is not None and math.isclose(given, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer beyond every float
        return False


def same_value(form: Any, expected: Any, tolerance: float | None = None) -> bool:
    """Whether an encoded value equals the expected one.

    The value stays encoded, since it is whatever the program wrote: only text is hashed here, which Python salts, so no
    set of colliding numbers can hold up the caller.

    Args:
        form: as `srpo_envs.sandbox.keeper.plain` encodes it.
        expected: plain data.
        tolerance: greatest absolute or relative error of numbers, at any depth; None compares exactly.
    """
    try:
        return _same(form, expected, tolerance)
    except (ValueError, TypeError, RecursionError):  # no form of a value, or nested beyond reason
        return False


def _same(form: Any, expected: Any, tolerance: float | None) -> bool:
    if expected is None or isinstance(expected, str | bytes):
        return bool(_text_or_nothing(form) == expected)
    if isinstance(expected, bool | int | float):
        return _same_number(_numeric(form), expected, tolerance)
    if isinstance(expected, list | tuple):
        items = _content(form, "tuple") if isinstance(form, dict) else form
        return _same_items(items, expected, tolerance)
    if isinstance(expected, Mapping):
        return _same_entries(_content(form, "dict"), expected, tolerance)
    if isinstance(expected, set | frozenset):
        given = {_key(item) for item in _content(form, "frozenset" if "frozenset" in form else "set")}
        return given == {_key_of_value(item) for item in expected}
    raise TypeError(f"an expected value of type {type(expected).__name__} is not plain data")


def _content(form: Any, tag: str) -> list[Any]:
    """Return what a tag holds.

    Raises:
        TypeError: the form has another tag, or none.
    """
    if not (isinstance(form, dict) and list(form) == [tag] and isinstance(form[tag], list)):
        raise TypeError(f"expected a {tag}")
    content: list[Any] = form[tag]
    return content


def _text_or_nothing(form: Any) -> Any:
    if isinstance(form, dict) and isinstance(form.get("bytes"), str):
        return bytes.fromhex(form["bytes"])
    if form is None or isinstance(form, str):
        return form
    raise TypeError("neither text nor None")


def _numeric(form: Any) -> Any:
    """Return a number as a number."""
    if isinstance(form, dict):
        if isinstance(form.get("int"), str):
            return int(form["int"], 16)
        if isinstance(form.get("float"), str):
            return float(form["float"])
    if isinstance(form, bool | int | float):
        return form
    raise TypeError("not a number")


def _same_items(items: Any, expected: Sequence[Any], tolerance: float | None) -> bool:
    return (
        isinstance(items, list)
        and len(items) == len(expected)
        and all(_same(item, wanted, tolerance) for item, wanted in zip(items, expected, strict=True))
    )


def _same_entries(pairs: Iterable[Any], expected: Mapping[Any, Any], tolerance: float | None) -> bool:
    given = {_key(key): item for key, item in pairs}
    wanted = {_key_of_value(key): item for key, item in expected.items()}
    return given.keys() == wanted.keys() and all(_same(given[key], wanted[key], tolerance) for key in wanted)


def _key(form: Any) -> str:
    """Return a text that equal forms of hashable values share: 1, 1.0 and True are one number."""
    if isinstance(form, dict):
        ((tag, content),) = form.items()
        if tag == "tuple":
            return f"({','.join(map(_key, content))})"
        if tag == "frozenset":
            return f"{{{','.join(sorted(map(_key, content)))}}}"
        if tag == "int":
            return hex(int(content, 16))
    if isinstance(form, bool | int | float):
        return hex(int(form)) if form == int(form) else repr(float(form))
    return json.dumps(form, sort_keys=True)


def _key_of_value(value: Any) -> str:
    return _key(encode(value))
