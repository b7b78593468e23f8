"""`srpo_train.tracking.terminal`: a row of numbers per step."""

from __future__ import annotations

import io

from rich.console import Console

from srpo_train.metrics import check_name
from srpo_train.tracking.terminal import COLUMNS, TerminalSink


def test_terminal_columns_show_known_metrics() -> None:
    for column in COLUMNS:
        check_name(column.name + "any" if column.name.endswith("/") else column.name)


STEP = {"eval/accuracy": 0.25, "rollout/valid_rate/solver": 1.0, "rollout/valid_rate/verifier": 0.5}


def shown(*, is_terminal: bool, width: int = 120) -> str:
    file = io.StringIO()
    sink = TerminalSink(4, console=Console(file=file, force_terminal=is_terminal, width=width))
    sink.write(1, STEP)
    sink.warn("look here")
    sink.write(2, {"eval/accuracy": 0.5})
    sink.close()
    return file.getvalue()


def test_without_a_terminal_there_are_plain_aligned_lines() -> None:
    header, first, warning, second = shown(is_terminal=False).splitlines()
    assert header.split()[:3] == ["step", "held-out", "right"]
    assert first.split() == ["1", "0.250", "75.0%"]  # valid: the mean of 1.0 and 0.5
    assert first.index("75.0%") + 5 == header.index("valid") + 5
    assert warning == "warning: look here"
    assert second.split() == ["2", "0.500"]


def test_on_a_terminal_a_bar_follows_the_rows() -> None:
    text = shown(is_terminal=True)
    assert "2/4" in text
    assert "held-out" in text


def test_a_narrow_terminal_loses_the_last_columns_instead_of_wrapping() -> None:
    assert "s/step" in shown(is_terminal=True, width=120)
    narrow = shown(is_terminal=True, width=50)
    assert "valid" in narrow
    assert "s/step" not in narrow
