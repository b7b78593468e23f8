"""The tutorials are true: their files are written, their commands run in order, and what they print is what is shown.

A block with a title is a file. A console block is commands after ``$`` with their output, in which ``...`` stands for
anything, as in doctest. Numbers are not compared: clocks and processors decide them. Other blocks are shown, not run.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT

TUTORIALS = [page for page in PAGES if page.startswith("docs/tutorials/")]

_NUMBER = re.compile(r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?%?")
_BLOCK = re.compile(r'^```(?P<language>\w*)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_can_be_followed(page: str, tmp_path: Path) -> None:
    for name in ("recipes", "sweeps"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in _BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"], encoding="utf-8")
        elif block["language"] == "console":
            for command, expected in steps(block["text"]):
                compare(command, expected, said_by(command, tmp_path))


def steps(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what is shown below it."""
    _, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    return [(command, expected) for command, _, expected in (part.partition("\n") for part in parts)]


def said_by(command: str, folder: Path) -> str:
    environment = os.environ | {
        "PATH": f"{shims(folder)}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def shims(folder: Path) -> Path:
    """A folder whose `srpo`, `python` and `torchrun` are those of this process."""
    bin_dir = folder / ".bin"
    bin_dir.mkdir(exist_ok=True)
    for name, module in {"srpo": "-m srpo_train.cli", "python": "", "torchrun": "-m torch.distributed.run"}.items():
        script = bin_dir / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    return bin_dir


def compare(command: str, expected: str, said: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    expected, said = (_NUMBER.sub("#", text) for text in (expected, said))
    checker = doctest.OutputChecker()
    if not checker.check_output(expected, said, flags):
        example = doctest.Example(command + "\n", expected)
        pytest.fail(f"$ {command}\n{checker.output_difference(example, said, flags)}")


def test_another_output_than_the_one_shown_is_noticed() -> None:
    compare("x", "one 7 s\n...\nthree\n", "one 1.23 s\ntwo\nthree\n")
    with pytest.raises(pytest.fail.Exception):
        compare("x", "one 7 s\n...\nthree\n", "one 1.23 s\ntwo\nfour\n")
    assert steps("$ a\n1\n2\n$ b\n") == [("a", "1\n2\n"), ("b", "")]
