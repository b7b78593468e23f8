"""Tables of sweeps in a document: only what stands between the markers changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.results_tables import replace_table
from srpo_envs.errors import ConfigError

ROOT = Path(__file__).parents[2]
TEXT = (
    "before\n<!-- table: a -->\nold\n<!-- end of table -->\nbetween\n<!-- table: b -->\n<!-- end of table -->\nafter\n"
)


def test_a_table_replaces_the_one_of_its_name_and_nothing_else() -> None:
    text = replace_table(TEXT, "a", "| new \\1 |\n")
    assert text == TEXT.replace("old", "\n| new \\1 |\n")
    assert replace_table(text, "a", "| new \\1 |\n") == text
    assert "after" in replace_table(TEXT, "b", "| x |")


def test_a_name_without_markers_is_refused() -> None:
    with pytest.raises(ConfigError, match="table: c"):
        replace_table(TEXT, "c", "| x |")
    with pytest.raises(ConfigError, match="end of table"):
        replace_table("<!-- table: a --> cut", "a", "| x |")


def test_the_results_have_a_place_for_every_table_that_make_writes() -> None:
    names = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("SWEEPS :="))
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for name in names.removeprefix("SWEEPS :=").split():
        assert (ROOT / "sweeps" / f"{name}.toml").is_file()
        assert replace_table(text, name, "| x |") != text
