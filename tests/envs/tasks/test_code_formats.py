"""Formats of programming sets: every spelling of the same tests reads the same; what is no test is refused."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import DatasetError
from srpo_envs.grading.code import CallCase, CheckCase, CodeTests, ScriptCase
from srpo_envs.tasks.code_formats import (
    CODE_SETS,
    OWN_SET,
    read_pickled_text,
    read_question,
    read_solution,
    read_tests,
)

PAIRS = [("1 2\n", "3\n"), ("4 5\n", "9\n")]


def packed(records, protocol=4) -> str:
    """LiveCodeBench's private tests: JSON, pickled, compressed, in base 64."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(records), protocol))).decode()


def spellings(pairs) -> dict[str, dict]:
    """The same tests by standard input as every set writes them."""
    records = [{"input": given, "output": wanted} for given, wanted in pairs]
    typed = [record | {"testtype": "stdin"} for record in records]
    columns = {"inputs": [given for given, _ in pairs], "outputs": [wanted for _, wanted in pairs]}
    return {
        "deepcoder": {"tests": json.dumps(records)},
        "deepcoder-columns": {"tests": json.dumps(columns)},
        "own": {"tests": records},
        "taco": {"input_output": json.dumps(columns)},
        "taco-lines": {"input_output": columns | {"inputs": [[given] for given in columns["inputs"]]}},
        "lcb-public": {"public_test_cases": json.dumps(typed)},
        "lcb-private": {"public_test_cases": json.dumps(typed[:1]), "private_test_cases": json.dumps(typed[1:])},
        "lcb-packed": {"public_test_cases": json.dumps(typed[:1]), "private_test_cases": packed(typed[1:])},
    }


def read_row(row, fields=OWN_SET.tests) -> CodeTests:
    return read_tests(row, fields)


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=4))
def test_every_spelling_of_scripts_reads_the_same(pairs):
    cases = tuple(ScriptCase(stdin=given, stdout=wanted) for given, wanted in pairs)
    for name, row in spellings(pairs).items():
        assert read_row(row) == CodeTests(cases=cases), name


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.lists(values, max_size=3), values), min_size=1, max_size=4))
def test_every_spelling_of_calls_reads_the_same(pairs):
    wrapped = [{"input": args, "output": [wanted], "fn_name": "f"} for args, wanted in pairs]
    columns = {"fn_name": "f", "inputs": [args for args, _ in pairs], "outputs": [[wanted] for _, wanted in pairs]}
    lines = [
        {"input": "\n".join(json.dumps(item) for item in args), "output": json.dumps(wanted), "testtype": "functional"}
        for args, wanted in pairs
    ]
    expected = CodeTests(
        cases=tuple(CallCase(args=tuple(args), expected=wanted) for args, wanted in pairs), function="f"
    )
    for row in (
        {"tests": wrapped},
        {"input_output": json.dumps(columns)},
        {"private_test_cases": packed(lines), "metadata": json.dumps({"func_name": "f"})},
        {"tests": json.dumps(lines), "metadata": {"func_name": "f"}},
        {"tests": [line | {"metadata": {"func_name": "f"}} for line in lines], "metadata": "{}"},
    ):
        assert read_row(row) == expected


def test_outputs_are_unwrapped_only_when_all_of_a_problem_are_lists_of_one():
    def outputs(*wanted):
        return [
            case.expected
            for case in read_row({"tests": [{"input": [], "output": w, "fn_name": "f"} for w in wanted]}).cases
        ]

    assert outputs([1], [2]) == [1, 2]
    assert outputs([[1]], [[2, 3]]) == [[1], [2, 3]]
    assert outputs([1], [2, 3]) == [[1], [2, 3]]
    assert outputs([1], 2) == [[1], 2]


# --- test code ----------------------------------------------------------------------------------------------------

MBPP = {
    "task_id": 2,
    "text": "Write a function to find the similar elements of two tuples.",
    "code": "def help_it(x):\n  return x\ndef similar(a, b):\n  return tuple(set(a) & set(b))",
    "test_list": ["assert set(similar((3, 4), (4, 9))) == {4}", "assert similar((1,), (2,)) == ()"],
    "test_setup_code": "",
    "challenge_test_list": ["assert [similar((i,), (i,)) for i in range(2)] == [(0,), (1,)]"],
}
SANITIZED = {
    "prompt": MBPP["text"],
    "code": MBPP["code"],
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(len(similar((1,), (1,))), 1)"],
}


def test_asserts_are_checks_of_the_one_function_they_take_from_the_program():
    tests = read_row(MBPP, CODE_SETS["mbpp"].tests)
    assert tests.function == "similar"
    assert tests.cases == tuple(CheckCase(code=code) for code in [*MBPP["test_list"], *MBPP["challenge_test_list"]])
    assert read_row(SANITIZED).function == "similar"
    assert read_row(SANITIZED).support.startswith("import math")
    assert read_row(MBPP | {"code": None}).function == "similar"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"code": "class Pair:\n  pass\ndef longest(a):\n  pass", "test_list": ["assert longest([Pair(1)]) == 1"]},
            "Pair",
        ),
        ({"code": "def f(x):\n  pass", "test_list": ["assert math.sqrt(f(1)) == 1"]}, "'math', which is no function"),
        ({"code": "def f(x):\n  pass", "test_list": ["assert 1 == 1"]}, "calls none"),
        ({"test_list": ["assert f(g(1)) == 1"]}, "calls f, g"),
        ({"test_list": ["assert f("]}, "no Python"),
        ({"test_list": ["(" * 500 + ")" * 500]}, "no Python"),
        ({"test_list": ["assert f(1)", 5]}, "list of texts"),
        ({"test_list": "assert f(1)"}, "list of texts"),
        ({"test_list": ["assert f(1)"], "test_setup_code": 3}, "no text"),
        ({"test": "assert f(1)", "entry_point": "f"}, "no check function"),
        ({"test": "def check(f): pass"}, "no check function"),
    ],
)
def test_test_code_that_cannot_grade_a_program_is_refused(row, message):
    with pytest.raises(DatasetError, match=message):
        read_row(row)


# --- hostile rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "holds no test"),
        (5, "no list of tests"),
        ("nonsense", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ([5], "without input and output"),
        ([{"input": "a"}], "without input and output"),
        ([{"input": 5, "output": "5"}], "no text"),
        ([{"input": ["a", 5], "output": "5"}], "no text"),
        ([{"input": 5, "output": 5, "fn_name": "f"}], "arguments that are no list"),
        ([{"input": "{", "output": "5", "fn_name": "f"}], "no JSON"),
        ([{"input": [], "output": 5, "fn_name": ["f"]}], "calls a function by the name"),
        ([{"input": [], "output": 5, "fn_name": "f()"}], "name of a function"),
        ({"inputs": ["a"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": "ab", "outputs": "ab"}, "neither records nor lists"),
        ({"a": 1}, "neither records nor lists"),
    ],
)
def test_tests_that_are_none_are_named(tests, message):
    with pytest.raises(DatasetError, match=f"field 'tests' .*{message}"):
        read_row({"tests": tests})


@given(
    st.sampled_from(["tests", "input_output", "test_list", "test", "public_test_cases", "private_test_cases"]), values
)
def test_whatever_a_field_holds_is_tests_or_a_typed_error(name, value):
    try:
        assert read_row({name: value, "entry_point": "f"}).cases
    except DatasetError as error:
        assert "expected one of the fields" in str(error) or f"field {name!r}" in str(error)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("never-made",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickled_text_is_read_and_nothing_else_is_unpickled(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_pickled_text(pickle.dumps("tests \N{SNOWMAN}", protocol)) == "tests \N{SNOWMAN}"
    for value in (Hostile(), ["a"], {"a": "b"}, 5, None, ("a", "b"), b"a"):
        with pytest.raises(DatasetError, match="pickle"):
            read_pickled_text(pickle.dumps(value, protocol))
    assert not list(tmp_path.iterdir())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_text_or_refused(data):
    for given_bytes in (data, b"\x80\x04" + data, pickle.dumps("x" * 300)[: len(data)]):
        try:
            assert isinstance(read_pickled_text(given_bytes), str)
        except DatasetError as error:
            assert "pickle" in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%%%", "neither JSON nor compressed"),
        (base64.b64encode(b"not compressed").decode(), "neither JSON nor compressed"),
        (packed([])[:-16], "cut short"),
        (base64.b64encode(zlib.compress(pickle.dumps("{}"))).decode(), "neither records nor lists"),
    ],
)
def test_private_tests_that_cannot_be_read_are_refused(text, message):
    with pytest.raises(DatasetError, match=message):
        read_row({"private_test_cases": text})


def test_tests_that_unpack_beyond_reason_are_refused(monkeypatch):
    monkeypatch.setattr("srpo_envs.tasks.code_formats._MAX_TEXT_BYTES", 1000)
    with pytest.raises(DatasetError, match="more than 1000 bytes"):
        read_row({"private_test_cases": packed([{"input": "x" * 10_000, "output": ""}])})


# --- questions and solutions --------------------------------------------------------------------------------------


def question(row) -> str:
    return read_question(row, OWN_SET.question, read_row(row))


def test_a_question_says_how_the_program_is_called():
    script = {"question": " Add. ", "tests": [{"input": "1 2", "output": "3"}]}
    assert question(script) == "Add.\n\nThe program reads standard input and writes standard output."
    call = {
        "problem": "Add.",
        "tests": [{"input": [1, 2], "output": 3, "fn_name": "add"}],
        "starter_code": "class Solution:",
    }
    assert (
        question(call) == "Add.\n\nThe tests call the function `add`.\n\nBegin with:\n```python\nclass Solution:\n```"
    )
    head = {"prompt": "def add(a, b):\n    '''Add.'''\n", "entry_point": "add", "test": "def check(candidate): pass"}
    assert question(head) == "Write the whole of this function:\n```python\ndef add(a, b):\n    '''Add.'''\n```"


def test_a_question_shows_the_first_assert_and_no_other():
    text = question(MBPP)
    assert MBPP["test_list"][0] in text
    assert not any(code in text for code in [*MBPP["test_list"][1:], *MBPP["challenge_test_list"]])


@pytest.mark.parametrize("row", [{"question": ""}, {"question": 5}, {}])
def test_a_row_without_a_question_is_refused(row):
    with pytest.raises(DatasetError, match="question"):
        question(row | {"tests": [{"input": "", "output": ""}]})


@pytest.mark.parametrize(
    ("row", "solution"),
    [
        ({"solutions": ["print(1)", "print(2)"]}, "print(1)"),
        ({"solutions": '["print(1)"]'}, "print(1)"),
        ({"solutions": ["```python\nprint(1)\n```"]}, "print(1)"),
        ({"prompt": "def f():\n", "canonical_solution": "    return 1\n"}, "def f():\n    return 1\n"),
        ({"code": "print(1)"}, "print(1)"),
        ({"solutions": []}, None),
        ({"solutions": [5]}, None),
        ({}, None),
    ],
)
def test_the_first_solution_is_the_gold_answer(row, solution):
    assert read_solution(row, OWN_SET.solution) == solution
