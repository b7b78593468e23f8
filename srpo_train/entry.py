"""What the command ``srpo`` starts: the command line, or one line that says which extra brings it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or end with the remedy where its packages are missing."""
    try:
        from srpo_train.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("srpo"):
            raise
        sys.exit(f"error: {error.name!r} is not installed: run pip install 'srpo[train]', or -e '.[train]' in a clone")
    run()
