"""The judge of programs: kinds of tests, comparison, counting, and that verdicts are out of a program's reach."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import DatasetError, SandboxError
from srpo_envs.grading.code import (
    CallCase,
    CheckCase,
    CodeTests,
    ScriptCase,
    judge,
    judge_many,
    same_text,
    same_value,
)
from srpo_envs.sandbox import Limits, Sandbox
from srpo_envs.sandbox.keeper.plain import encode

LIMITS = Limits(cpu_s=2.0, wall_s=3.0, memory_bytes=256 << 20)

ADD = CodeTests(
    cases=(CallCase(args=(1, 2), expected=3), CallCase(args=(5,), kwargs={"b": 5}, expected=10)), function="add"
)
SUM_LINES = CodeTests(cases=tuple(ScriptCase(stdin=f"{i}\n{i}\n", stdout=f"{2 * i}\n") for i in range(4)))
CHECKED = CodeTests(
    cases=(CheckCase(code="assert candidate(2) == (4, [2])"), CheckCase(code="for i in range(9):\n    double(i)")),
    function="double",
)


def verdict(source: str, tests: CodeTests, boxed: Sandbox, **options: Any) -> tuple[bool, int, str]:
    given = judge(source, tests, sandbox=boxed, limits=LIMITS, **options)
    assert given.num_tests == len(tests.cases)
    return given.passed, given.num_passed, given.reason


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("print(int(input()) + int(input()))", SUM_LINES),
        ("def add(a, b):\n    return a + b", ADD),
        ("class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b", ADD),
        ("add = lambda a, b: a + b", ADD),
        ("def double(x):\n    return 2 * x, [x]", CHECKED),
    ],
)
def test_right_programs_pass(source: str, tests: CodeTests, boxed: Sandbox) -> None:
    assert verdict(source, tests, boxed) == (True, len(tests.cases), "")


@pytest.mark.parametrize(
    ("source", "tests", "num_passed", "reason"),
    [
        ("print(0)", SUM_LINES, 1, "wrong answer"),
        ("1 / 0", SUM_LINES, 0, "error"),
        ("def add(a, b):\n    return 3", ADD, 1, "wrong answer"),
        ("def add(a):\n    return 3", ADD, 0, "error"),
        ("def plus(a, b):\n    return a + b", ADD, 0, "error"),
        ("def double(x):\n    return 2 * x, (x,)", CHECKED, 0, "wrong answer"),
        ("def double(x):\n    return 1 / (x - 8) and (2 * x, [x])", CHECKED, 1, "error"),
    ],
)
def test_wrong_programs_fail(source: str, tests: CodeTests, num_passed: int, reason: str, boxed: Sandbox) -> None:
    assert verdict(source, tests, boxed) == (False, num_passed, reason)


def test_tests_after_a_failure_run_only_when_asked_to(boxed: Sandbox) -> None:
    source = "n = int(input())\nprint(0 if n == 1 else 2 * n)"
    assert verdict(source, SUM_LINES, boxed) == (False, 1, "wrong answer")
    assert verdict(source, SUM_LINES, boxed, stop_at_failure=False) == (False, 3, "wrong answer")


def test_a_call_over_its_limit_costs_only_itself(boxed: Sandbox) -> None:
    source = "def f(x):\n    while x == 1:\n        pass\n    return x"
    tests = CodeTests(cases=tuple(CallCase(args=(i,), expected=i) for i in range(3)), function="f")
    assert verdict(source, tests, boxed, stop_at_failure=False) == (False, 2, "timeout")


def test_many_keep_their_order(boxed: Sandbox) -> None:
    pairs = [(f"def add(a, b):\n    return {answer}", ADD) for answer in ("a + b", "a - b", "a + b", "None")]
    assert [given.passed for given in judge_many(pairs, sandbox=boxed)] == [True, False, True, False]


NOTHING = CodeTests(cases=(CallCase(args=(), expected=None),), function="f")
CHECK_NOTHING = CodeTests(cases=(CheckCase(code="assert candidate() is None"),), function="f")


@pytest.mark.parametrize("tests", [NOTHING, CHECK_NOTHING], ids=["call", "check"])
@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "import os\ndef f():\n    os._exit(0)",
        "def f():\n    raise SystemExit",
        "def f():\n    while True:\n        pass",
        "",
    ],
)
def test_silence_is_not_none(source: str, tests: CodeTests, boxed: Sandbox) -> None:
    assert judge("def f():\n    pass", tests, sandbox=boxed, limits=LIMITS).passed
    assert not judge(source, tests, sandbox=boxed, limits=LIMITS).passed


def test_test_code_sees_its_support_and_the_errors_of_the_program(boxed: Sandbox) -> None:
    code = "try:\n    f(-1)\nexcept ValueError as error:\n    assert 'negative' in str(error)\nelse:\n    assert False"
    tests = CodeTests(
        cases=(CheckCase(code="assert math.isclose(helper(f(4)), 3)"), CheckCase(code=code)),
        function="f",
        support="import math\ndef helper(x):\n    return x + 1",
    )
    source = "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x ** 0.5"
    assert verdict(source, tests, boxed) == (True, 2, "")
    assert verdict("def f(x):\n    return x ** 0.5 if x > 0 else 0", tests, boxed) == (False, 1, "wrong answer")


def test_no_error_of_the_program_ends_a_loop_of_the_test_code(boxed: Sandbox) -> None:
    loop = CheckCase(code="assert all(map(lambda x: candidate(x) == x, [1, 2, 3]))")
    tests = CodeTests(cases=(loop,), function="f")
    assert verdict("def f(x):\n    return x", tests, boxed) == (True, 1, "")
    for error in (
        "StopIteration",
        "StopAsyncIteration",
        "GeneratorExit",
        "SystemExit",
        "type('E', (StopIteration,), {})",
    ):
        assert verdict(f"def f(x):\n    raise {error}", tests, boxed) == (False, 0, "error")


def test_processes_of_test_code_do_not_see_each_other(boxed: Sandbox) -> None:
    def tests(code: str) -> CodeTests:
        return CodeTests(cases=(CheckCase(code=code),), function="f")

    with Sandbox(num_workers=1) as own:
        assert judge("f = abs", tests("global kept\nkept = 1"), sandbox=own).passed
        assert judge("f = abs", tests("assert 'kept' not in globals()"), sandbox=own).passed


def test_broken_test_code_is_no_wrong_answer(boxed: Sandbox) -> None:
    tests = CodeTests(cases=(CheckCase(code="pass"),), function="f", support="import no_such_module")
    with pytest.raises(SandboxError, match="no_such_module"):
        judge("def f():\n    pass", tests, sandbox=boxed)


def test_expected_answers_do_not_show_in_runs(boxed: Sandbox) -> None:
    tests = CodeTests(
        cases=(CheckCase(code="print('secret')\nassert candidate() == 'secret', 'secret'"),), function="f"
    )
    given = judge("def f():\n    print('mine')", tests, sandbox=boxed, limits=LIMITS)
    assert given.reason == "wrong answer"
    assert "secret" not in repr(given.runs)
    assert given.runs[0].stdout == "mine\n"


@pytest.mark.parametrize(
    ("cases", "function", "message"),
    [
        ((), "f", "got none"),
        ((ScriptCase(stdin="", stdout=""), CheckCase(code="")), "f", "CheckCase and ScriptCase"),
        ((CallCase(args=(), expected=1),), "", "name of a function"),
        ((CheckCase(code=""),), "Solution().f", "name of a function"),
    ],
)
def test_unusable_tests_are_refused(cases: tuple[Any, ...], function: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        CodeTests(cases=cases, function=function)


# --- comparison ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_text", "expected", "tolerance", "is_same"),
    [
        ("1 2\n3\n", "1 2  \n3", None, True),
        ("1 2\r\n3\r\n\n\n", "1 2\n3\n", None, True),
        ("", "\n", None, True),
        ("1  2", "1 2", None, False),
        (" 1", "1", None, False),
        ("1\n\n2", "1\n2", None, False),
        ("YES", "yes", None, False),
        ("1.0", "1", None, False),
        ("1.0000001 x", "1 x", 1e-6, True),
        ("1.00001 x", "1 x", 1e-6, False),
        ("2000001", "2000000", 1e-6, True),
        ("nan", "1", 1e-6, False),
        ("nan", "nan", 1e-6, True),
        ("1 1", "1", 1e-6, False),
        ("1\n1", "1 1", 1e-6, False),
        ("yes", "no", 1e-6, False),
    ],
)
def test_text(given_text: str, expected: str, tolerance: float | None, is_same: bool) -> None:
    assert same_text(given_text, expected, tolerance) is is_same


@pytest.mark.parametrize(
    ("value", "expected", "tolerance", "is_same"),
    [
        (3, 3, None, True),
        (True, 1, None, True),
        (2.0, 2, None, True),
        (10**30, 10**30, None, True),
        (10**30, 1e30, None, False),  # 1e30 is 10**30 + 19884624838656
        (float("inf"), float("inf"), None, True),
        (float("nan"), float("nan"), None, False),
        (10**400, 1.0, 1e-6, False),
        (0.1 + 0.2, 0.3, None, False),
        (0.1 + 0.2, 0.3, 1e-9, True),
        ([1, (0.1 + 0.2,)], [1, [0.3]], 1e-9, True),
        ("3", 3, None, False),
        (3, "3", None, False),
        (None, None, None, True),
        (None, 0, None, False),
        (0, None, None, False),
        (b"x", b"x", None, True),
        (b"x", "x", None, False),
        ((1, 2), [1, 2], None, True),
        ([1, 2], [2, 1], None, False),
        ([1], [1, 1], None, False),
        ({1, 2}, [1, 2], None, False),
        ({1, 2}, {2, 1}, None, True),
        (frozenset({(1, 2)}), {(1, 2)}, None, True),
        ({1.0, 2}, {True, 2}, None, True),
        ({1: "a", "b": [2]}, {"b": [2], 1: "a"}, None, True),
        ({"1": "a"}, {1: "a"}, None, False),
        ({"a": 1, "b": 2}, {"a": 1}, None, False),
        ([], {}, None, False),
    ],
)
def test_values(value: Any, expected: Any, tolerance: float | None, is_same: bool) -> None:
    assert same_value(encode(value), expected, tolerance) is is_same


@pytest.mark.parametrize("expected", [None, 1, 0.5, "x", b"x", [1], (1,), {"a": 1}, {1}, frozenset({1})])
@pytest.mark.parametrize(
    "form",
    [
        *({}, {"tuple": 3}, {"dict": [[1]]}, {"dict": 3}, {"int": "zz"}, {"int": 3}, {"float": "x"}, {"bytes": "zz"}),
        *(
            {"set": [{"a": 1}]},
            {"tuple": [], "set": []},
            {"frozenset": [{"tuple": [{}]}]},
            {"dict": [[{"int": []}, 1]]},
        ),
    ],
)
def test_forms_that_encode_nothing_equal_nothing(form: Any, expected: Any) -> None:
    assert same_value(form, expected) is False


def test_deeply_nested_forms_equal_nothing() -> None:
    form: Any = []
    for _ in range(100_000):
        form = [form]
    expected: Any = []
    for _ in range(100_000):
        expected = [expected]
    assert same_value(form, expected) is False


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
values = st.recursive(
    scalars | st.frozensets(st.integers() | st.text(max_size=2), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(values, values)
def test_values_are_the_same_exactly_when_python_says_so(value: Any, other: Any) -> None:
    assert same_value(encode(value), value)
    assert same_value(encode(value), other) == (value == other)


# --- a whole benchmark --------------------------------------------------------------------------------------------

HUMAN_EVAL = (
    Path(os.environ.get("SRPO_DATA") or Path(__file__).parents[4] / "shared" / "data") / "code" / "HumanEval.jsonl.gz"
)


def human_eval_tests(row: dict[str, str]) -> CodeTests:
    check = CheckCase(code=f"{row['test']}\ncheck({row['entry_point']})")
    return CodeTests(cases=(check,), function=row["entry_point"], support=row["prompt"])


@pytest.fixture(scope="module")
def human_eval() -> list[dict[str, str]]:
    if not HUMAN_EVAL.exists():
        pytest.skip(f"{HUMAN_EVAL.name} is not there: set SRPO_DATA")
    with gzip.open(HUMAN_EVAL, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("body", ["pass", "return 0", "raise SystemExit"])
def test_no_empty_solution_passes(human_eval: list[dict[str, str]], boxed: Sandbox, body: str) -> None:
    some = human_eval[::8]
    pairs = [(f"{row['prompt']}    {body}\n", human_eval_tests(row)) for row in some]
    assert [given.num_passed for given in judge_many(pairs, sandbox=boxed, limits=LIMITS)] == [0] * len(some)
