r"""Readers of model text: which box and which tag decides, and what is malformed."""

from __future__ import annotations

import functools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.parsing import (
    CORRECT,
    INCORRECT,
    MAX_QUERY_CHARS,
    Malformed,
    Parsed,
    extract_boxed,
    parse_answer,
    parse_boxed_answer,
    parse_boxed_verdict,
    parse_code_block,
    parse_route,
    parse_search,
    parse_selection,
    parse_step,
    parse_subtasks,
    parse_text,
    parse_verdict,
)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"So \boxed{12}.", "12"),
        (r"$$\boxed{\frac{5}{6}}$$", r"\frac{5}{6}"),
        (r"\boxed{\{1,\{2\}\}}", r"\{1,\{2\}\}"),
        (r"\boxed{a\\{b}}", r"a\\{b}"),
        (r"\boxed{3}\boxed{4}", "4"),
        (r"\boxed{3} or \boxed{", None),
        (r"\boxed{3} or \boxed{ }", None),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{see \boxed{3} above}", "3"),
        (r"\boxed 5", "5"),
        (r"\boxed 12.", "12"),
        (r"\boxed -3$", "-3"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed  {7}", "7"),
        ("use \\boxed to answer", None),
        (r"\boxed", None),
        (r"\fbox{3}", "3"),
        (r"\boxed{2} then \fbox{1}", "2"),
        (r"\boxedx{3}", None),
        (r"boxed{3}", None),
        (r"\\boxed{3}", "3"),
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"<think>\boxed{1}</think>two", None),
        (r"<think>\boxed{1}", None),
        (r"x</think>\boxed{2}<think>\boxed{3}", None),
        (r"a</think>b</think>\boxed{2}", "2"),
        (r"\boxed{1}} }", "1"),
        ("\\boxed{\u200b}", None),
        (r"\boxed{19\ }", "19\\ "),
        ("\\boxed{a\\\\ }", "a\\\\"),
        ("", None),
    ],
)
def test_last_box_decides(response: str, expected: str | None) -> None:
    assert extract_boxed(response) == expected
    result = parse_boxed_answer(response)
    assert result == Parsed(expected) if expected is not None else isinstance(result, Malformed)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("the answer is 3", "no boxed answer"),
        (r"\boxed{3", "empty or unclosed box"),
        (r"<think>\boxed{3}", "unfinished thinking"),
    ],
)
def test_missing_boxes_have_stable_reasons(response: str, reason: str) -> None:
    assert parse_boxed_answer(response) == Malformed(reason)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<verify>approve</verify>", Parsed("approve")),
        ("I think <verify> Reject </verify> since", Parsed("reject")),
        ("<think>hm</think><verify>approve</verify>", Parsed("approve")),
        ("approve", Malformed("no verdict tag")),
        ("<verify></verify>", Malformed("empty verdict tag")),
        ("<verify>approve.</verify>", Malformed("unknown verdict")),
        ("<verify>reject approve</verify>", Malformed("unknown verdict")),
        ("<verify>reject</verify><verify>reject</verify>", Malformed("two verdict tags")),
        ("<verify>reject</verify></verify>", Malformed("two verdict tags")),
        ("</verify>reject<verify>", Malformed("unclosed verdict tag")),
        ("<verify>reject", Malformed("unclosed verdict tag")),
        ("<think><verify>approve</verify></think>", Malformed("verdict tag inside thinking")),
        ("<think><verify>approve</verify>", Malformed("unfinished thinking")),
        ("<verify>是</verify>", Malformed("unknown verdict")),
        ("理由。<verify>approve</verify>", Parsed("approve")),
    ],
)
def test_verdict_needs_exactly_one_known_tag(response: str, expected: Parsed | Malformed) -> None:
    assert parse_verdict(response) == expected


def test_verdict_words_and_tag_can_be_chosen() -> None:
    assert parse_verdict("<check>yes</check>", tag="check", verdicts=("yes", "no")) == Parsed("yes")
    assert parse_verdict("<verify>approve</verify>", tag="check") == Malformed("no verdict tag")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"\boxed{Correct}", Parsed(CORRECT)),
        (r"The sum is off. \boxed{ incorrect }", Parsed(INCORRECT)),
        (r"\boxed{INCORRECT} as said", Parsed(INCORRECT)),
        (r"The draft says \boxed{12}, which is wrong: \boxed{Incorrect}", Parsed(INCORRECT)),
        (r"\boxed{Correct}? No: \boxed{Incorrect}", Parsed(INCORRECT)),
        (r"\boxed{\boxed{Correct}}", Parsed(CORRECT)),
        (r"<think>\boxed{Incorrect}</think>\boxed{Correct}", Parsed(CORRECT)),
        (r"\boxed{Correct} The answer is \boxed{12}", Malformed("unknown verdict")),
        (r"\boxed{not Correct}", Malformed("unknown verdict")),
        (r"\boxed{Correct.}", Malformed("unknown verdict")),
        (r"\boxed{Correct, Incorrect}", Malformed("unknown verdict")),
        (r"\boxed{Сorrect}", Malformed("unknown verdict")),  # a Cyrillic first letter
        ("Incorrect, that is not Correct", Malformed("no boxed answer")),
        (r"\boxed{}", Malformed("empty or unclosed box")),
        (r"\boxed{Correct} or \boxed{", Malformed("empty or unclosed box")),
        (r"<think>\boxed{Correct}", Malformed("unfinished thinking")),
        ("", Malformed("no boxed answer")),
    ],
)
def test_a_boxed_verdict_is_one_known_word_in_the_last_box(response: str, expected: Parsed | Malformed) -> None:
    assert parse_boxed_verdict(response) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1", Parsed(1)),
        (" 3 ", Parsed(3)),
        ("03", Parsed(3)),
        (r"\boxed{2}", Parsed(2)),
        ("0", Malformed("no draft of that number")),
        ("4", Malformed("no draft of that number")),
        ("999999999", Malformed("no draft of that number")),
        ("9" * 5000, Malformed("not a number")),
        ("-1", Malformed("not a number")),
        ("+1", Malformed("not a number")),
        ("1.0", Malformed("not a number")),
        ("1, 2", Malformed("not a number")),
        ("[2]", Malformed("not a number")),
        ("Draft 2", Malformed("not a number")),
        ("２", Malformed("not a number")),
        ("٢", Malformed("not a number")),
        ("²", Malformed("not a number")),
        ("", Malformed("empty or unclosed box")),
    ],
)
def test_a_selection_is_the_number_of_a_draft(content: str, expected: Parsed | Malformed) -> None:
    assert parse_selection(f"So \\boxed{{{content}}}.", num_drafts=3) == expected


@pytest.mark.parametrize("response", ["I select 2.", "<think>\\boxed{2}</think>", "2"])
def test_a_number_outside_the_box_selects_nothing(response: str) -> None:
    assert parse_selection(response, num_drafts=3) == Malformed("no boxed answer")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("SUBTASK 1: a", Parsed(("a",))),
        ("First:\nSUBTASK 1: a\nSUBTASK 2:b\n", Parsed(("a", "b"))),
        ("SUBTASK 1: a\nand more\n\nSubtask 2 : b", Parsed(("a\nand more", "b"))),
        ("**SUBTASK 1:** a\n## SUBTASK 2: b", Parsed(("a", "b"))),
        ("<think>SUBTASK 1: x</think>SUBTASK 1: a", Parsed(("a",))),
        ("SUBTASK 1: like SUBTASK 2: of yesterday", Parsed(("like SUBTASK 2: of yesterday",))),
        ("SUBTASK 01: a", Parsed(("a",))),
        ("SUBTASK 1: a\nSUBTASK 2: b\nSUBTASK 3: c\nSUBTASK 4: d", Malformed("too many subtasks")),
        ("SUBTASK 1: a\nSUBTASK 1: b", Malformed("subtasks not numbered in order")),
        ("SUBTASK 1: a\nSUBTASK 3: b", Malformed("subtasks not numbered in order")),
        ("SUBTASK 2: a\nSUBTASK 1: b", Malformed("subtasks not numbered in order")),
        ("SUBTASK 0: a", Malformed("subtasks not numbered in order")),
        ("SUBTASK 1:\nSUBTASK 2: b", Malformed("empty subtask")),
        ("SUBTASK 1: a\nSUBTASK 2: ", Malformed("empty subtask")),
        ("SUBTASK 1: **\n", Malformed("empty subtask")),
        ("SUBTASK １: a", Malformed("no subtask")),
        ("SUBTASK one: a", Malformed("no subtask")),
        ("SUBTASK: a", Malformed("no subtask")),
        ("1. a\n2. b", Malformed("no subtask")),
        ("I have no SUBTASK 1: a", Malformed("no subtask")),
        ("<think>SUBTASK 1: a", Malformed("unfinished thinking")),
        ("", Malformed("no subtask")),
    ],
)
def test_subtasks_count_from_one_at_the_start_of_lines(response: str, expected: Parsed | Malformed) -> None:
    assert parse_subtasks(response, most=3) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>hm</think> It is 7.\n", Parsed("It is 7.")),
        ("It is 7.", Parsed("It is 7.")),
        ("<think>hm</think>", Malformed("empty response")),
        (" \u200b\n", Malformed("empty response")),
        ("<think>It is 7.", Malformed("unfinished thinking")),
    ],
)
def test_a_text_is_what_follows_the_thinking(response: str, expected: Parsed | Malformed) -> None:
    assert parse_text(response) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("STOP", Parsed("STOP")),
        (" stop ", Parsed("STOP")),
        ("[1, 3]", Parsed((1, 3))),
        ("3", Parsed((3,))),
        ("[3,1,3]", Parsed((3, 1))),
        ("[0]", Malformed("index out of range")),
        ("[1,4]", Malformed("index out of range")),
        ("[-1]", Malformed("not a list of indices")),
        ("[1.0]", Malformed("not a list of indices")),
        ("[1,]", Malformed("not a list of indices")),
        ("[]", Malformed("not a list of indices")),
        ("[1", Malformed("unbalanced list")),
        ("[２]", Malformed("not a list of indices")),
        ("all", Malformed("not a list of indices")),
        ("STOP, 1", Malformed("not a list of indices")),
        ("", Malformed("empty route tag")),
    ],
)
def test_route_is_stop_or_indices_in_range_and_never_a_default(content: str, expected: Parsed | Malformed) -> None:
    assert parse_route(f"<route>{content}</route>", low=1, high=3) == expected


def test_stop_can_be_forbidden() -> None:
    assert parse_route("<route>STOP</route>", low=1, high=3, allow_stop=False) == Malformed("stop not allowed")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>a</think><search>x y</search>", Parsed("x y")),
        ("<think>a</think>\nso\n<search>x</search> end", Parsed("x")),
        ("<search>x</search>", Malformed("no think tag")),
        ("<think>a<search>x</search></think>", Malformed("search tag before the end of thinking")),
        ("<think>a</think><search>x</search><search>y</search>", Malformed("two search tags")),
        ("<think>a</think><search>x</search><answer>y</answer>", Malformed("answer tag beside the search tag")),
        ("<think>a</think><search> </search>", Malformed("empty search tag")),
        ("<think>a</think>x", Malformed("no search tag")),
        ("<think>a</think></think><search>x</search>", Malformed("two think tags")),
    ],
)
def test_search_follows_one_think_block(response: str, expected: Parsed | Malformed) -> None:
    assert parse_search(response) == expected


def test_answer_follows_one_think_block() -> None:
    assert parse_answer("<think>a</think><answer>5 < 7</answer>") == Parsed("5 < 7")
    assert parse_answer("<think>a</think><search>x</search>") == Malformed("no answer tag")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>a</think><search> x y </search>", Parsed(("search", "x y"))),
        ("<think>a</think><answer>x</answer>", Parsed(("answer", "x"))),
        ("<think>a</think>so <answer>x</answer> then", Parsed(("answer", "x"))),
        ("", Malformed("no think tag")),
        ("<search>x</search>", Malformed("no think tag")),
        ("<answer>x</answer>", Malformed("no think tag")),
        ("<think>a</think>x", Malformed("neither search nor answer tag")),
        ("<think>a</think><search></search>", Malformed("empty search tag")),
        ("<think>a</think><answer> </answer>", Malformed("empty answer tag")),
        ("<think>a</think><search>x", Malformed("unclosed search tag")),
        ("<think>a</think><answer>x", Malformed("unclosed answer tag")),
        ("<think>a</think><search>x</search><search>y</search>", Malformed("two search tags")),
        ("<think>a</think><answer>x</answer><answer>x</answer>", Malformed("two answer tags")),
        ("<think>a</think><search>x</search><answer>y</answer>", Malformed("search tag beside the answer tag")),
        ("<think>a</think><answer>y</answer><search>x</search>", Malformed("search tag beside the answer tag")),
        ("<think><answer>x</answer></think><search>y</search>", Parsed(("search", "y"))),  # thinking decides nothing
        ("<think><search>x</search></think>", Malformed("search tag before the end of thinking")),
        ("<think><answer>x</answer></think>", Malformed("neither search nor answer tag")),
        ("<think><answer>x</answer></think><search>", Malformed("unclosed search tag")),
        ("<think>a<answer>x</answer>", Malformed("unclosed think tag")),
    ],
)
def test_a_step_is_a_search_or_an_answer_and_never_both(response: str, expected: Parsed | Malformed) -> None:
    assert parse_step(response) == expected


_PIECES = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", " x ")


@given(st.lists(st.sampled_from(_PIECES), max_size=9).map("".join))
def test_tags_in_any_order_make_the_decision_that_exactly_one_reader_accepts(text: str) -> None:
    read = {"search": parse_search(text), "answer": parse_answer(text)}
    accepted = [(tag, result.value) for tag, result in read.items() if isinstance(result, Parsed)]
    assert len(accepted) <= 1
    step = parse_step(text)
    assert step == Parsed(accepted[0]) if accepted else isinstance(step, Malformed)


READERS = (
    parse_boxed_answer,
    parse_boxed_verdict,
    parse_code_block,
    parse_verdict,
    parse_search,
    parse_answer,
    parse_step,
    parse_text,
    functools.partial(parse_route, low=1, high=5),
    functools.partial(parse_selection, num_drafts=3),
    functools.partial(parse_subtasks, most=3),
)
"""Every reader of a response."""


@given(st.text(alphabet=r"\boxed{} <>/thinkverfyapos1,[]SUBTAK:", max_size=60))
def test_no_text_makes_a_reader_raise(text: str) -> None:
    for reader in READERS:
        assert isinstance(reader(text), (Parsed, Malformed))


@pytest.mark.parametrize(
    "piece",
    [
        "<think>",
        "</think>",
        "<verify>",
        "<answer>",
        "\\boxed{",
        "{",
        "\\boxed ",
        "<route>[1,",
        "\\",
        "```python\n",
        "```",
        "\nSUBTASK 1:",
        " *",
    ],
)
def test_hostile_repetition_takes_linear_time(piece: str) -> None:
    text = "\\boxed{<think></think><answer>" + piece * 100_000
    start = time.perf_counter()
    for reader in READERS:
        reader(text)
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("So:\n```python\nprint(1)\n```\nDone.", Parsed("print(1)")),
        ("```python\nx = 1\n```\nbetter:\n```Python\nx = 2\n\ny = 3\n```", Parsed("x = 2\n\ny = 3")),
        ("```py\r\nx\r\n```\r", Parsed("x\r")),
        ("  ```python3 \n  x\n  ```", Parsed("  x")),
        ("```python\nx = 1\n```\n```json\n{}\n```", Parsed("x = 1")),
        ("```json\n```python\nx\n```\n", Malformed("no code block")),
        ("<think>```python\nx\n```</think>```python\ny\n```", Parsed("y")),
        ("<think>\n```python\nx\n```\n</think>\n```python\ny\n```", Parsed("y")),
        ("<think>\n```python\nx\n```", Malformed("unfinished thinking")),
        ("```python\ns = '''```'''\n```", Parsed("s = '''```'''")),
        ("```python\nx\n```\n```python\ny", Malformed("unclosed code block")),
        ("```python\nx\n```\n```\nmore", Parsed("x")),
        ("```\nx\n```", Malformed("no code block")),
        ("```python\n \n```", Malformed("empty code block")),
        ("```python x = 1```", Malformed("no code block")),
        ("print(1)", Malformed("no code block")),
        ("", Malformed("no code block")),
    ],
)
def test_the_last_closed_python_block_is_the_program(response: str, expected: Parsed | Malformed) -> None:
    assert parse_code_block(response) == expected


def test_a_query_beyond_what_search_servers_take_is_malformed():
    longest = "x" * MAX_QUERY_CHARS
    assert parse_search(f"<think></think><search>{longest}</search>") == Parsed(longest)
    assert parse_search(f"<think></think><search>{longest}x</search>") == Malformed("query too long")
    assert parse_step(f"<think></think><search>{longest}x</search>") == Malformed("query too long")
