"""The docs say what the code does: generated tables are current, and the command line's page is complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from srpo_train.cli import app
from srpo_train.config import Recipe, parse_recipe
from srpo_train.metrics import TABLE
from srpo_train.reference import BEGIN, END, PAGES, metric_reference, recipe_reference, refresh

DOCS = Path(__file__).parents[2] / "docs"
SMALLEST = {"name": "x", "env": {"id": "e"}, "policies": {"p": {"model": "m"}}}


@pytest.mark.parametrize("page", PAGES)
def test_the_generated_part_of_a_page_is_current(page: str) -> None:
    text = (DOCS / page).read_text()
    assert text == refresh(text, PAGES[page]()), "run python -m srpo_train.reference docs"


def test_every_key_of_a_recipe_is_in_the_reference_with_its_sentence() -> None:
    reference = recipe_reference()
    for section in Recipe.model_fields:
        assert f"[{section}" in reference or f"| `{section}` |" in reference
    for section, keys in parse_recipe(SMALLEST).model_dump().items():
        for key in keys if isinstance(keys, dict) and section not in ("policies", "roles") else ():
            if f"### [{section}.{key}]" in reference:
                continue
            row = re.search(rf"^\| `{key}` \| (.+) \| (.+) \| (.+) \|$", reference, re.MULTILINE)
            assert row, f"{section}.{key}"
            assert row[3].endswith("."), f"{section}.{key} has no sentence"


def test_types_bounds_and_defaults_are_written_for_people() -> None:
    reference = recipe_reference()
    assert "| `lr` | number > 0 | `1e-06` |" in reference
    assert '| `schedule` | `constant`, `linear`, `cosine` | `"constant"` |' in reference
    assert "| `betas` | list | `[0.9, 0.999]` |" in reference
    assert "| `clip_low` | number | the preset's |" in reference
    assert "| `tensorboard` | `true`, `false` | `true` |" in reference
    assert "| `model` | text | required |" in reference


def test_every_metric_is_in_the_reference_once() -> None:
    reference = metric_reference()
    for metric in TABLE:
        assert reference.count(f"| `{metric.name}` |") == 1


def test_only_the_part_between_the_marks_is_replaced() -> None:
    assert refresh(f"a\n{BEGIN}\nold\n{END}\nz", "new") == f"a\n{BEGIN}\n\nnew\n\n{END}\nz"
    with pytest.raises(ValueError, match="expected the marks"):
        refresh("a page without marks", "new")


def every_command(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its words, groups and what they hold."""
    for name, command in group.commands.items():
        yield prefix + name, command
        if hasattr(command, "commands"):
            yield from every_command(command, f"{prefix}{name} ")


def test_the_page_of_the_command_line_names_every_command_and_option() -> None:
    page = (DOCS / "cli.md").read_text()
    sections = dict(re.findall(r"^###? srpo ([\w -]+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    commands = dict(every_command(typer.main.get_command(app)))
    assert set(sections) == set(commands)
    for name, command in commands.items():
        for option in (flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")):
            assert f"`{option}" in sections[name], f"srpo {name} {option}"
