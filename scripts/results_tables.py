"""Put the tables of sweeps into a document, between the markers that name them.

    python -m scripts.results_tables docs/results.md runs/baselines-arithmetic runs/baselines-search

The table of a sweep's directory replaces what stands between ``<!-- table: baselines-arithmetic -->`` and the next
``<!-- end of table -->``; ``make tables`` trains the sweeps first. Everything else in the document stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from srpo_envs.errors import ConfigError
from srpo_train.sweep import write_results

END = "<!-- end of table -->"


def main(arguments: Sequence[str]) -> None:
    """Write the tables of sweep directories into a document."""
    if len(arguments) < 2:
        sys.exit(f"usage: python -m scripts.results_tables DOCUMENT SWEEP_DIRECTORY ...\n\n{__doc__}")
    document = Path(arguments[0])
    text = document.read_text(encoding="utf-8")
    for out in map(Path, arguments[1:]):
        text = replace_table(text, out.name, write_results(out).read_text(encoding="utf-8"))
    document.write_text(text, encoding="utf-8")


def replace_table(text: str, name: str, table: str) -> str:
    """Return a document in which what stands between the markers of a name is a table.

    Raises:
        ConfigError: the document has no such markers, or has them twice.
    """
    begin = f"<!-- table: {name} -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(END), re.DOTALL)
    if text.count(begin) != 1 or not pattern.search(text):
        raise ConfigError(f"expected {begin!r} once, and {END!r} after it, in the document")
    return pattern.sub(lambda _: f"{begin}\n\n{table.strip()}\n\n{END}", text)


if __name__ == "__main__":
    main(sys.argv[1:])
