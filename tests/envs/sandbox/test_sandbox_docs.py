"""The documented table is that of the suite."""

from __future__ import annotations

from pathlib import Path

from adversaries import table

PAGE = Path(__file__).parents[3] / "docs" / "sandbox.md"


def test_the_page_shows_the_programs_of_the_suite() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "run python tests/envs/sandbox/adversaries.py, paste its table"
