from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs" / "engines.md"


def test_the_examples_of_the_documentation_run():
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), str(DOCS), "exec"), {"__name__": "docs"})
