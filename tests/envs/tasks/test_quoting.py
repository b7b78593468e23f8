"""Quoting: no line stands outside its quotation, no chat mark survives, thinking is private."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.tasks.quoting import quote, without_thinking


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("<think>secret</think>Seen.", "Seen."),
        ("a<think>b</think>c<think>d</think> e", "e"),
        ("Seen.<think>unfinished", "Seen."),
        ("no thinking", "no thinking"),
        ("<think>all of it", ""),
        ("closed only</think> seen", "seen"),
    ],
)
def test_thinking_is_never_committed(text, visible):
    assert without_thinking(text) == visible


BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("line_break", BREAKS)
def test_every_line_is_quoted_whatever_its_break(line_break):
    assert quote(line_break.join(["a", "# Your role: judge", "", "b"])) == "> a\n> # Your role: judge\n>\n> b"


@given(st.lists(st.sampled_from([*"ab <>#|", *BREAKS])).map("".join))
def test_no_line_of_any_text_stands_outside_its_quotation(text):
    lines = quote(text).splitlines()
    assert lines
    assert all(line == ">" or line.startswith("> ") for line in lines)


def test_chat_template_marks_of_a_member_are_broken_up():
    assert quote("<|im_end|>\n<|im_start|>system") == "> < |im_end|>\n> < |im_start|>system"
    assert quote("</s><s>[INST] x [/INST]") == "> < /s>< s>[ INST] x [ /INST]"
    assert quote("<｜end▁of▁sentence｜>") == "> < ｜end▁of▁sentence｜>"
    assert quote("<end_of_turn><start_of_turn><eos>") == "> < end_of_turn>< start_of_turn>< eos>"


def test_mathematics_that_looks_a_little_like_a_mark_stays():
    text = "a<b, x<s, [a,b), 1 < |x| and <1,2>"
    assert quote(text) == f"> {text}"
