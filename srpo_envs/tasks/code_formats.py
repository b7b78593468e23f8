r"""How published programming sets write a problem and its hidden tests.

=============================== ========================================================================================
field                           tests
=============================== ========================================================================================
``test``, ``entry_point``       a function ``check(candidate)`` (HumanEval)
``test_list``                   assert statements (MBPP)
``tests``                       records with ``input`` and ``output`` (DeepCoder), or lists of them as in the next line
``input_output``                ``inputs`` and ``outputs``, with ``fn_name`` where a function is called (TACO, APPS)
``public_test_cases`` and       the same records, JSON in a text, the private ones maybe compressed (LiveCodeBench)
``private_test_cases``
=============================== ========================================================================================

Any set may use any of these, so a file is read whichever edition it is. Whatever a row holds is data: JSON is parsed,
Python is at most parsed into a syntax tree to find the name of a function, and the one pickled text that LiveCodeBench
publishes is read opcode by opcode, since unpickling could run anything.
"""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
import json
import pickletools
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srpo_envs.errors import DatasetError
from srpo_envs.grading.code import CallCase, Case, CheckCase, CodeTests, ScriptCase
from srpo_envs.parsing import Parsed, parse_code_block
from srpo_envs.tasks.loading import PublishedSet, first_present

_PUBLIC, _PRIVATE = "public_test_cases", "private_test_cases"
_ALL_TESTS = ("tests", "test_list", "test", "input_output", _PRIVATE, _PUBLIC)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeSet(PublishedSet):
    """One published set: where it is found and what its fields are called."""

    question: tuple[str, ...] = ("problem", "question", "question_content", "text", "prompt")
    """Fields that may hold the problem, the first one present counts."""
    tests: tuple[str, ...] = _ALL_TESTS
    """Fields that may hold the tests, the first one present counts."""
    solution: tuple[str, ...] = ("solutions", "solution", "code", "canonical_solution")
    """Fields that may hold a program that solves the problem; it need not have one."""


_MBPP = "google-research-datasets/mbpp"

CODE_SETS: dict[str, CodeSet] = {
    "sample": CodeSet(shipped="code_sample.jsonl"),
    "humaneval": CodeSet(
        hub_id="openai/openai_humaneval",
        splits=("test",),
        question=("prompt",),
        tests=("test",),
        solution=("canonical_solution",),
    ),
    "mbpp": CodeSet(
        hub_id=_MBPP,
        config="full",
        splits=("train", "test", "validation", "prompt"),
        question=("text", "prompt"),
        tests=("test_list",),
        solution=("code",),
    ),
    "mbpp-sanitized": CodeSet(
        hub_id=_MBPP,
        config="sanitized",
        splits=("train", "test", "validation", "prompt"),
        question=("prompt", "text"),
        tests=("test_list",),
        solution=("code",),
    ),
    "livecodebench": CodeSet(
        hub_id="livecodebench/code_generation_lite",
        config="release_v5",
        splits=("test",),
        question=("question_content",),
        tests=(_PRIVATE, _PUBLIC),
    ),
    "deepcoder": CodeSet(
        hub_id="agentica-org/DeepCoder-Preview-Dataset",
        config="lcbv5",
        splits=("train", "test"),
        question=("problem",),
        tests=("tests",),
        solution=("solutions",),
    ),
    "taco": CodeSet(
        hub_id="BAAI/TACO",
        splits=("train", "test"),
        question=("question",),
        tests=("input_output",),
        solution=("solutions",),
    ),
}
"""The sets known by name; each also loads from a local file in the hub's format or a common variant of it."""

OWN_SET = CodeSet()
"""Field names tried for a set of your own."""

_MAX_TEXT_BYTES = 1 << 29
"""Most bytes that compressed tests may have unpacked."""


def read_tests(row: Mapping[str, Any], fields: Sequence[str]) -> CodeTests:
    """Return the tests of a row.

    Raises:
        DatasetError: no field holds tests, or what it holds is none.
    """
    name = first_present(row, fields, "tests")
    try:
        if name == "test":
            return _check_function(row)
        if name == "test_list":
            return _asserts(row)
        return _records(row, name)
    except DatasetError as error:
        raise DatasetError(f"field {name!r} {error}") from None


def read_question(row: Mapping[str, Any], fields: Sequence[str], tests: CodeTests) -> str:
    """Return the problem of a row with what a program must know of its tests: how it is called, never what is tested.

    Raises:
        DatasetError: no field holds a problem.
    """
    name = first_present(row, fields, "question")
    text = row[name]
    if not isinstance(text, str) or not text.strip():
        raise DatasetError(f"field {name!r} holds no question: {text!r:.80}")
    if "entry_point" in row and name == "prompt":  # the head of a function, documented
        return f"Write the whole of this function:\n{_fenced(text)}"
    return "\n\n".join([text.strip(), *_calling(row, tests)])


def read_solution(row: Mapping[str, Any], fields: Sequence[str]) -> str | None:
    """Return a program that solves the problem, the first of several; None where the row has none."""
    for name in fields:
        value = _json_or_text(row.get(name))
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, str) and value.strip():
            if name == "canonical_solution":  # the rest of a function whose head is the question
                return f"{row.get('prompt') or ''}{value}"
            block = parse_code_block(value)
            return str(block.value) if isinstance(block, Parsed) else value
    return None


# --- words of a question ------------------------------------------------------------------------------------------


def _calling(row: Mapping[str, Any], tests: CodeTests) -> list[str]:
    """Say how the program is called, with the example or the beginning that the set gives."""
    if isinstance(tests.cases[0], ScriptCase):
        return ["The program reads standard input and writes standard output."]
    parts = [f"The tests call the function `{tests.function}`."]
    if row.get("test_list"):
        parts.append(f"For example:\n{_fenced(row['test_list'][0])}")
    starter = row.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        parts.append(f"Begin with:\n{_fenced(starter)}")
    return parts


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


# --- test code: HumanEval, MBPP -----------------------------------------------------------------------------------


def _check_function(row: Mapping[str, Any]) -> CodeTests:
    function, test, prompt = row.get("entry_point"), row["test"], row.get("prompt", "")
    if not all(isinstance(text, str) for text in (function, test, prompt)) or "check" not in test:
        raise DatasetError(f"holds no check function beside an entry_point: {test!r:.80}")
    case = CheckCase(code=f"{test}\ncheck({function})")
    return CodeTests(cases=(case,), function=str(function), support=prompt)  # some checks call helpers of the prompt


def _asserts(row: Mapping[str, Any]) -> CodeTests:
    tests = [*_texts(row, "test_list"), *_texts(row, "challenge_test_list")]
    setup = row.get("test_setup_code") or ""
    if not isinstance(setup, str):
        raise DatasetError(f"comes with a test_setup_code that is no text: {setup!r:.80}")
    support = "\n".join([*_texts(row, "test_imports"), setup])
    function = _tested_function("\n".join([support, *tests]), row.get("code"))
    return CodeTests(cases=tuple(CheckCase(code=test) for test in tests), function=function, support=support)


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    values = row.get(name)
    if values is None:
        return []
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise DatasetError(f"needs a list of texts in {name!r}, got {values!r:.80}")
    return list(values)


def _tested_function(test_code: str, solution: Any) -> str:
    """Return the one name that test code takes from the program: nothing but a function can leave the sandbox."""
    nodes = list(ast.walk(_parse(test_code)))
    wanted = {node.id for node in nodes if isinstance(node, ast.Name)} - _bound_names(nodes) - set(dir(builtins))
    if isinstance(solution, str):
        top = _parse(solution).body
        functions = _bound_names([node for node in top if isinstance(node, ast.FunctionDef)])
        functions |= _bound_names([node for item in top if isinstance(item, ast.Assign) for node in item.targets])
        if strangers := wanted - functions:
            raise DatasetError(f"uses {min(strangers)!r}, which is no function of the program")
    if len(wanted) != 1:
        raise DatasetError(f"must call one function of the program, calls {', '.join(sorted(wanted)) or 'none'}")
    return min(wanted)


def _bound_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that these nodes give something to."""
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=own):
                names.add(own or name.partition(".")[0])
    return names


def _parse(code: str) -> ast.Module:
    """Return the syntax tree of code; nothing of it is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in texts of the code
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DatasetError(f"comes with code that is no Python: {error}") from None


# --- inputs and outputs: DeepCoder, TACO, LiveCodeBench -----------------------------------------------------------


def _records(row: Mapping[str, Any], name: str) -> CodeTests:
    if name in (_PUBLIC, _PRIVATE):
        records = [*_unpack(row.get(_PUBLIC)), *_unpack(row.get(_PRIVATE))]
    else:
        records = _list_of_records(_json(row[name]))
    if not records:
        raise DatasetError("holds no test")
    if not all(isinstance(record, Mapping) and {"input", "output"} <= record.keys() for record in records):
        raise DatasetError(f"holds a test without input and output: {records!r:.80}")
    named = (records[0].get("fn_name"), _metadata(records[0]).get("func_name"), _metadata(row).get("func_name"))
    function = next((name for name in named if name), None)
    if function is None:
        return CodeTests(cases=tuple(_script(record) for record in records))
    if not isinstance(function, str):
        raise DatasetError(f"calls a function by the name {function!r:.80}")
    is_wrapped = all(_is_wrapped(record["output"]) for record in records)
    cases: list[Case] = [_call(record, is_wrapped) for record in records]
    return CodeTests(cases=tuple(cases), function=function)


def _list_of_records(value: Any) -> list[Any]:
    """Return tests as a list of records, whether they are written so or as a list of inputs and one of outputs."""
    if isinstance(value, Mapping):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple):
            raise DatasetError(f"holds neither records nor lists of inputs and outputs: {value!r:.80}")
        if len(inputs) != len(outputs):
            raise DatasetError(f"holds {len(inputs)} inputs and {len(outputs)} outputs")
        own = {"fn_name": value.get("fn_name")}
        return [{"input": given, "output": wanted, **own} for given, wanted in zip(inputs, outputs, strict=True)]
    if not isinstance(value, list | tuple):
        raise DatasetError(f"holds no list of tests: {value!r:.80}")
    return list(value)


def _metadata(row: Mapping[str, Any]) -> Mapping[str, Any]:
    value = _json_or_text(row.get("metadata"))
    return value if isinstance(value, Mapping) else {}


def _script(record: Mapping[str, Any]) -> ScriptCase:
    return ScriptCase(stdin=_lines(record["input"]), stdout=_lines(record["output"]))


def _lines(value: Any) -> str:
    """Return what passes through standard input or output; APPS writes some of it as a list of lines."""
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise DatasetError(f"holds an input or output that is no text: {value!r:.80}")
    return value


def _is_wrapped(output: Any) -> bool:
    """Whether an output may be one value in a list, as APPS and its descendants write what a function returns."""
    return isinstance(output, list | tuple) and len(output) == 1


def _call(record: Mapping[str, Any], is_wrapped: bool) -> CallCase:
    """Return a call: its arguments in a list, or as LiveCodeBench has them, JSON in a line each."""
    given, wanted = record["input"], record["output"]
    if isinstance(given, str):
        return CallCase(args=tuple(_json(line) for line in given.split("\n") if line.strip()), expected=_json(wanted))
    if not isinstance(given, list | tuple):
        raise DatasetError(f"holds arguments that are no list: {given!r:.80}")
    return CallCase(args=tuple(given), expected=wanted[0] if is_wrapped else wanted)


# --- texts that hold data -----------------------------------------------------------------------------------------


def _json(value: Any) -> Any:
    """Return the value a text spells as JSON, or what is no text as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"holds a text that is no JSON ({error}): {value!r:.80}") from None


def _json_or_text(value: Any) -> Any:
    try:
        return _json(value)
    except DatasetError:
        return value


def _unpack(value: Any) -> list[Any]:
    """Return the records of a LiveCodeBench field: JSON, or JSON pickled, compressed and written in base 64."""
    if not value:
        return []
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = read_pickled_text(_decompress(value))
    return _list_of_records(_json(value))


def _decompress(text: str) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(base64.b64decode(text, validate=True), _MAX_TEXT_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise DatasetError(f"holds neither JSON nor compressed tests ({error}): {text!r:.80}") from None
    if not unpacking.eof:
        raise DatasetError(f"holds compressed tests that are cut short, or of more than {_MAX_TEXT_BYTES} bytes")
    return content


_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_QUIET_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")


def read_pickled_text(data: bytes) -> str:
    """Return the text that a pickle holds, without unpickling: a pickle that holds anything else is refused.

    Raises:
        DatasetError: it is no pickle of one text.
    """
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT_OPCODES:
                texts.append(str(argument))
            elif opcode.name not in _QUIET_OPCODES:
                raise DatasetError(f"holds a pickle with {opcode.name}, which could run code; only a text is read")
    except (ValueError, OverflowError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"holds no pickled text ({error})") from None
    if len(texts) != 1:
        raise DatasetError(f"holds a pickle of {len(texts)} texts; expected one")
    return texts[0]
