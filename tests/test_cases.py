"""The shared case collection, run by its own scorer in child processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CASES = Path(os.environ.get("SRPO_CASES", ROOT.parent / "shared" / "cases"))

pytestmark = pytest.mark.skipif(
    not (CASES / "score.py").is_file(), reason="no case collection: set SRPO_CASES to its folder"
)


@pytest.fixture(scope="module")
def report() -> str:
    names = ("math", "boxed", "qa", "tags")
    command = [sys.executable, str(CASES / "score.py"), "--dir", str(CASES), "--path", str(ROOT), "--path"]
    command += [str(ROOT / "tests"), "--hostile", "--show", "20"]
    command += [part for name in names for part in (f"--{name}", f"case_adapters:{name}")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["math", "boxed", "qa", "tags"])
def test_every_row_is_right_and_raises_nothing(report: str, name: str) -> None:
    lines = re.findall(rf"^{name} .*right (\d+)/(\d+) .*errors (\d+)  hang/died (\d+)", report, re.MULTILINE)
    assert len(lines) == 2, report
    for right, total, errors, hangs in lines:
        assert (right, errors, hangs) == (total, "0", "0"), report


def test_every_hostile_row_passes(report: str) -> None:
    match = re.search(r"^hostile\s+passed (\d+)/(\d+)", report, re.MULTILINE)
    assert match is not None, report
    assert match.group(1) == match.group(2), report
