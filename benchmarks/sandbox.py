"""Programs a second in the sandbox, beside `subprocess.run` of the same interpreter, and what shutting in costs.

Run it with ``python benchmarks/sandbox.py``. Every line is one way to run the same programs: `subprocess` starts a bare
interpreter (`-I -S`) with a timeout and nothing else; `rlimits` and `namespaces` are the sandbox's two isolations, the
first left out with a line where it is refused. A *script* is hello world in a box of its own; a *test* is one of twenty
inputs of the same program, which share a box; a *call* is one of two hundred calls of a function; a *check* is a whole
problem in the manner of HumanEval, the test code in a second box.

Times are wall-clock milliseconds of one unit, one at a time. Cells are measured in rounds that alternate with all
others and the best round counts, so that other work on the machine decides as little as possible. The last column is
the number of units a second with one worker a core, best round again. Below the table stands the processor time of
hello world, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import marshal
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from srpo_envs.errors import SandboxError
from srpo_envs.grading.code import CallCase, CheckCase, CodeTests, ScriptCase, judge
from srpo_envs.sandbox import Program, Sandbox
from srpo_envs.sandbox.keeper import bubblewrap, seccomp
from srpo_envs.sandbox.sandbox import find_bubblewrap

HELLO = "print('hello world')"
DOUBLE = "print(2 * int(input()))"
FUNCTION = "def double(x):\n    return 2 * x\n"

TESTS = CodeTests(cases=tuple(ScriptCase(stdin=str(i), stdout=str(2 * i)) for i in range(20)))
CALLS = CodeTests(cases=tuple(CallCase(args=(i,), expected=2 * i) for i in range(200)), function="double")
CHECK = CodeTests(
    cases=(CheckCase(code="def check(candidate):\n    assert candidate(2) == 4\ncheck(double)"),), function="double"
)


@dataclass(frozen=True)
class Cell:
    """One kind of work done in one way."""

    kind: str
    way: str
    num_units: int
    work: Callable[[], None]


def plain(source: str, stdin: str = "") -> str:
    """Run a program with nothing but a timeout."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source], input=stdin, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def plain_cells() -> list[Cell]:
    """Return the work as a plain subprocess does it."""

    def tests() -> None:
        for case in TESTS.cases:
            assert isinstance(case, ScriptCase)
            assert plain(DOUBLE, case.stdin).strip() == case.stdout

    def calls() -> None:
        plain(f"{FUNCTION}\nfor i in range(200):\n    assert double(i) == 2 * i")

    def check() -> None:
        plain(f"{FUNCTION}\ndef check(candidate):\n    assert candidate(2) == 4\ncheck(double)")

    return [
        Cell("script", "subprocess", 1, lambda: assert_hello(plain(HELLO))),
        Cell("test", "subprocess", len(TESTS.cases), tests),
        Cell("call", "subprocess, unprotected", len(CALLS.cases), calls),
        Cell("check", "subprocess, unprotected", 1, check),
    ]


def sandbox_cells(sandbox: Sandbox) -> list[Cell]:
    """Return the work as the sandbox does it."""

    def judged(source: str, tests: CodeTests) -> Callable[[], None]:
        def work() -> None:
            assert judge(source, tests, sandbox=sandbox).passed

        return work

    return [
        Cell("script", sandbox.isolation, 1, lambda: assert_hello(sandbox.run(Program(HELLO)).stdout)),
        Cell("test", sandbox.isolation, len(TESTS.cases), judged(DOUBLE, TESTS)),
        Cell("call", sandbox.isolation, len(CALLS.cases), judged(FUNCTION, CALLS)),
        Cell("check", sandbox.isolation, 1, judged(FUNCTION, CHECK)),
    ]


def assert_hello(text: str) -> None:
    assert text == "hello world\n", text


def processor_ms(command: list[str], descriptors: tuple[int, ...] = ()) -> float:
    """Return the processor time of a command and of everything it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, pass_fds=descriptors, capture_output=True, env={}, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def box_processor_ms() -> float:
    """Return the processor time of a box that runs hello world and then ends by itself."""
    filter_fd, (requests, sender) = os.memfd_create("filter"), os.pipe()
    os.write(filter_fd, seccomp.box_filter())
    os.lseek(filter_fd, 0, os.SEEK_SET)
    setup = {"source": HELLO, "rlimits": {}, "filter": seccomp.program_filter(may_signal_itself=True).hex(), "path": []}
    for request in (setup, {"kind": "script", "stdin": "", "args": []}):
        data = marshal.dumps(request)
        os.write(sender, len(data).to_bytes(4, "little") + data)
    os.close(sender)
    replies = os.open(os.devnull, os.O_WRONLY)
    command = bubblewrap.boxed_command(find_bubblewrap(), packages=(), filter_fd=filter_fd, scratch_bytes=1 << 20)
    spent = processor_ms([*command, str(requests), str(replies)], (filter_fd, requests, replies))
    for descriptor in (filter_fd, requests, replies):
        os.close(descriptor)
    return spent


def milliseconds(work: Callable[[], None]) -> float:
    """Return the wall-clock time of some work."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def at_once(work: Callable[[], None], num_workers: int) -> None:
    """Do the work four times a worker, as many at once as there are workers."""
    with ThreadPoolExecutor(num_workers) as threads:
        list(threads.map(lambda _: work(), range(4 * num_workers)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    num_workers = len(os.sched_getaffinity(0))
    cells, sandboxes = plain_cells(), []
    for isolation in ("rlimits", "namespaces"):
        try:
            sandboxes.append(Sandbox(num_workers=num_workers, isolation=isolation))
        except SandboxError as error:
            print(f"{isolation} is left out: {error}\n")
            continue
        cells += sandbox_cells(sandboxes[-1])
    cells.sort(key=lambda cell: ("script", "test", "call", "check").index(cell.kind))
    single: dict[Cell, list[float]] = {cell: [] for cell in cells}
    many: dict[Cell, list[float]] = {cell: [] for cell in cells}
    for _ in range(rounds):
        for cell in cells:
            single[cell].append(milliseconds(cell.work) / cell.num_units)
            many[cell].append(
                4 * num_workers * cell.num_units / milliseconds(lambda c=cell: at_once(c.work, num_workers))
            )
    print(f"| unit | way | ms | units a second, {num_workers} workers |\n|---|---|---|---|")
    for cell in cells:
        print(f"| {cell.kind} | {cell.way} | {min(single[cell]):.2f} | {1000 * max(many[cell]):,.0f} |")
    bare = min(processor_ms([sys.executable, "-I", "-S", "-c", HELLO]) for _ in range(rounds))
    boxed = min(box_processor_ms() for _ in range(rounds))
    print(f"\nProcessor time of hello world: {bare:.1f} ms bare, {boxed:.1f} ms in a box.")
    for sandbox in sandboxes:
        sandbox.close()


if __name__ == "__main__":
    main()
