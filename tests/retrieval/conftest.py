"""Real data, read in place where it is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(os.environ.get("SRPO_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(scope="session")
def data_file() -> Callable[[str], Path]:
    """Path of a file of the real data by its name there; skips the test where it is missing."""

    def find(name: str) -> Path:
        if not (DATA / name).is_file():
            pytest.skip(f"no {name}: set SRPO_DATA to the folder that holds it")
        return DATA / name

    return find
