"""`srpo view`: what it says, and how it is refused and ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner
from viewer_world import make_viewed_run

from srpo_train.cli import app

pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["view", *map(str, arguments)])
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    return re.sub(r"\s+", " ", result.stderr)


def test_a_directory_that_is_no_run_says_what_to_do(tmp_path: Path) -> None:
    for options in ((), ("--terminal",)):
        assert "neither a run" in refused(tmp_path, *options)
        assert "name the directory of a run" in refused(tmp_path / "missing", *options)


def test_an_address_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "choose another --host or --port" in refused(run_dir, "--port", port, "--no-browser")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_it_prints_its_address_answers_there_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    run_dir = make_viewed_run(tmp_path / "run")
    command = [sys.executable, "-m", "srpo_train.cli", "view", str(run_dir), "--port", "0", "--no-browser"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ | {"COLUMNS": "100"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        told = [process.stdout.readline() for _ in range(2)]
        assert told[0] == "showing run\n"
        url = told[1].split()[-1]
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"<title>Runs" in answer.read()
        process.send_signal(signal.SIGINT)
        rest, problems = process.communicate(timeout=120)
    assert process.returncode == 0, problems
    assert rest.endswith("closed\n") and not problems
