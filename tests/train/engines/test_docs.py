from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(("name", "num_blocks"), [("engines.md", 3), ("custom-agents.md", 3), ("evaluation.md", 1)])
def test_the_examples_of_the_documentation_run(name, num_blocks):
    page = DOCS / name
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == num_blocks
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "docs"})
