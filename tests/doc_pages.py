"""The pages of the documentation and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
"""Every page, by its path in the tree."""

_BLOCK = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, *languages: str) -> list[str]:
    """Return the blocks of a page in some languages, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block["text"] for block in _BLOCK.finditer(text) if block["language"] in languages]


def pages_with(*languages: str) -> list[str]:
    """Return the pages that have a block in one of some languages."""
    return [page for page in PAGES if blocks(page, *languages)]
