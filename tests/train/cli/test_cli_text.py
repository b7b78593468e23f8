"""Text from outside on a terminal: shown, never obeyed."""

from __future__ import annotations

import errno
import io
import os

import pytest
import typer
from factories import make_event, make_member
from rich.console import Console

from srpo_train.cli._errors import FAILED, guarded
from srpo_train.cli._evaluation import _losses
from srpo_train.cli._stage import show_event
from srpo_train.cli._text import shown
from srpo_train.evaluation import BenchmarkResult
from srpo_train.evaluation.tally import Tally

HOSTILE = "\x1b]0;title\x07\x1b[31m[/] [red]x[/red] \x9b2J \u202eabc\n| ../.. | <b> \\textbf{y}"


def printed(*what: object) -> str:
    file = io.StringIO()
    for item in what:
        Console(file=file, force_terminal=True, color_system=None, width=200).print(item)
    return file.getvalue()


def test_what_steers_a_terminal_is_replaced_and_markup_is_text() -> None:
    assert printed(shown(HOSTILE)).split("\n")[:2] == [
        "\ufffd]0;title\ufffd\ufffd[31m[/] [red]x[/red] \ufffd2J \ufffdabc",
        "| ../.. | <b> \\textbf{y}",
    ]


def test_a_stored_event_with_hostile_texts_is_shown() -> None:
    file = io.StringIO()
    member = make_member(text=HOSTILE, prompt=HOSTILE, parsed=None, malformed_reason=HOSTILE)
    event = make_event(members=(member,), cardinality=1, state_label=HOSTILE)
    show_event(Console(file=file, force_terminal=True, color_system=None), event)
    text = file.getvalue()
    assert "[red]x[/red]" in text
    assert not [control for control in ("\x1b]", "\x1b[31m", "\x9b", "\x07", "\u202e") if control in text]


def test_what_went_wrong_is_counted_whatever_the_number_of_reasons() -> None:
    tally = Tally()
    for number in range(30):
        tally.add_lost(f"reason {number}")
    tally.add_wrong("a", "too long")
    found = BenchmarkResult(
        env_id="e", num_tasks=1, set_size=1, expected_tasks=None, digest="d", seeds={0: tally.result(["a"])}
    )
    told = [line for line in _losses("own", found, samples=31) if line.startswith("own")]
    assert told == [
        "own: 30 samples lost and in no score; the same command tries them again",
        "own: 1 sample without an answer, counted as wrong",
    ]


def test_errors_of_the_system_end_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fill_the_disk() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "\x1b[2Jruns/a[/]")

    with pytest.raises(typer.Exit) as ended:
        guarded(fill_the_disk)()
    assert ended.value.exit_code == FAILED
    assert capsys.readouterr().err.startswith("error: [Errno 28] No space left on device: ")
