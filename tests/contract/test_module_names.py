"""Test modules are imported by their bare names, so two of one name would hide each other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_module_below_the_tests_has_a_name_of_its_own() -> None:
    counts = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in counts.items() if count > 1] == []


def test_nothing_is_imported_from_a_conftest() -> None:
    # There are several, and which of them the name means depends on what was collected before.
    importing = [
        path for path in TESTS.rglob("*.py") if "from conftest " + "import" in path.read_text(encoding="utf-8")
    ]
    assert importing == []
