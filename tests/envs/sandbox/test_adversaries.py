"""No program escapes, none scores without solving, none costs more than its limits: seen by effect, from outside."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from adversaries import ADVERSARIES, Adversary

from srpo_envs.grading.code import CallCase, CheckCase, CodeTests, ScriptCase, Verdict, judge
from srpo_envs.sandbox import Limits, Program, Sandbox

LIMITS = Limits(cpu_s=1.0, wall_s=1.5, memory_bytes=256 << 20, num_threads=16, file_bytes=4 << 20, output_bytes=200_000)
START_S = 20.0
"""What starting, ending and replacing boxes may cost a judgement on a machine that is busy with other work."""


@dataclass(frozen=True)
class Machine:
    """What programs must not reach."""

    canary: Path
    answers: Path
    answer: str
    mark: str
    listener: socket.socket
    abstract: socket.socket

    def fill(self, source: str) -> str:
        known = {
            "@CANARY@": str(self.canary),
            "@ANSWERS@": str(self.answers),
            "@PARENT@": str(os.getpid()),
            "@PORT@": str(self.listener.getsockname()[1]),
            "@MARK@": self.mark,
        }
        for name, value in known.items():
            source = source.replace(name, value)
        return source

    def tests(self, row: Adversary) -> CodeTests:
        """One test whose answer cannot be guessed."""
        if row.mode == "script":
            return CodeTests(cases=(ScriptCase(stdin="3", stdout=self.answer),))
        if row.mode == "call":
            return CodeTests(cases=(CallCase(args=(3,), expected=self.answer),), function="f")
        return CodeTests(cases=(CheckCase(code=f"assert candidate(3) == {self.answer!r}"),), function="f")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    (folder / "canary").write_text("untouched")
    answer, mark = f"answer-{secrets.token_hex(8)}", f"m{secrets.token_hex(6)}"
    (folder / "answers.json").write_text(answer)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{mark}")
        abstract.listen()
        listener.setblocking(False)
        abstract.setblocking(False)
        yield Machine(folder / "canary", folder / "answers.json", answer, mark, listener, abstract)


@pytest.fixture(scope="module")
def outcomes(machine: Machine, boxed: Sandbox) -> dict[str, tuple[Verdict, float]]:
    """Every program's verdict and what it cost, several programs at once."""

    def one(row: Adversary) -> tuple[Verdict, float]:
        start = time.monotonic()
        verdict = judge(machine.fill(row.source), machine.tests(row), sandbox=boxed, limits=LIMITS)
        return verdict, time.monotonic() - start

    with ThreadPoolExecutor(boxed.num_workers) as threads:
        return dict(zip((row.name for row in ADVERSARIES), threads.map(one, ADVERSARIES), strict=True))


def test_there_are_enough_programs_and_each_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ADVERSARIES}) == len(ADVERSARIES) >= 60


@pytest.mark.parametrize("row", ADVERSARIES, ids=lambda row: row.name)
def test_program_gains_nothing(row: Adversary, outcomes: dict[str, tuple[Verdict, float]], machine: Machine) -> None:
    verdict, cost_s = outcomes[row.name]
    (run,) = verdict.runs
    assert not verdict.passed
    assert run.status in row.ends, (run.status, run.exit_code, run.stdout[-300:], run.stderr[-300:])
    assert row.says in run.stdout, (run.stdout[-300:], run.stderr[-300:])
    assert "ESCAPED" not in run.stdout
    assert machine.answer not in run.stdout + run.stderr + str(run.value)
    assert len(run.stdout) + len(run.stderr) <= 2 * LIMITS.output_bytes + 4000
    # a module is loaded and then called: each has the limit to itself
    assert cost_s < 2 * LIMITS.wall_s + START_S


def test_the_machine_is_as_it_was(outcomes: dict[str, tuple[Verdict, float]], machine: Machine, boxed: Sandbox) -> None:
    assert machine.canary.read_text() == "untouched"
    assert machine.canary.stat().st_mode & 0o7777 == 0o644
    with pytest.raises(BlockingIOError):
        machine.listener.accept()
    with pytest.raises(BlockingIOError):
        machine.abstract.accept()
    assert not Path("/escaped").exists()
    assert machine.mark not in {path.read_text().strip() for path in living("comm")}
    assert boxed.run(Program("print(6 * 7)")).stdout == "42\n"


def living(name: str) -> Iterator[Path]:
    """Readable files of that name of every process and thread of the machine."""
    for path in Path("/proc").glob(f"[0-9]*/task/[0-9]*/{name}"):
        try:
            path.read_text()
        except OSError:
            continue
        yield path


def test_solving_is_what_scores(machine: Machine, boxed: Sandbox) -> None:
    right = f"def f(x):\n    return {machine.answer!r}\nif __name__ == '__main__':\n    print(f(3))"
    for mode in ("script", "call", "check"):
        row = Adversary(group="", tries="", source="", ends=frozenset(), mode=mode)
        assert judge(right, machine.tests(row), sandbox=boxed, limits=LIMITS).passed
