"""The sandbox as its callers see it: results, limits, sessions, pools, broken surroundings."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from srpo_envs.errors import SandboxError, SurroundingsError
from srpo_envs.sandbox import Limits, Program, Sandbox, sandbox

ROOT = Path(__file__).parents[3]
SHORT = Limits(cpu_s=1.0, wall_s=1.5, memory_bytes=256 << 20, output_bytes=100_000)


def num_children() -> int:
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_run_reports_output_exit_code_and_time(boxed: Sandbox) -> None:
    source = "import sys\nprint(input() + sys.argv[1])\nprint('oh', file=sys.stderr)\nsys.exit(7)"
    run = boxed.run(Program(source, stdin="a\nb", args=("c",)), SHORT)
    assert (run.status, run.exit_code, run.stdout, run.stderr) == ("error", 7, "ac\n", "oh\n")
    assert 0.0 < run.cpu_s < run.wall_s < 1.5


@pytest.mark.parametrize(
    ("source", "code", "stderr"),
    [
        ("import sys\nsys.exit()", 0, ""),
        ("import sys\nsys.exit('why')", 1, "why\n"),
        ("import sys\nsys.exit(True)", 1, ""),
        ("raise SystemExit(256 + 3)", 3, ""),
        ("import os\nos._exit(5)", 5, ""),
    ],
)
def test_exit_codes_are_those_of_the_interpreter(boxed: Sandbox, source: str, code: int, stderr: str) -> None:
    run = boxed.run(Program(source), SHORT)
    assert (run.exit_code, run.stderr, run.status) == (code, stderr, "error" if code else "ok")


def test_a_program_ends_as_scripts_do(boxed: Sandbox) -> None:
    source = """
import atexit, threading, time
file = open(1, "w", closefd=False)
file.write("unflushed file\\n")
atexit.register(print, "exit handler")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
print(__name__, __file__)
"""
    run = boxed.run(Program(source), SHORT)
    assert sorted(run.stdout.splitlines()) == ["__main__ main.py", "exit handler", "thread", "unflushed file"]


def test_traceback_starts_at_the_program(boxed: Sandbox) -> None:
    run = boxed.run(Program("def f():\n    return 1 / 0\nf()"), SHORT)
    assert run.stderr.startswith('Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n    f()\n')
    assert run.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("read", ["open(0).read()", "open('/dev/stdin').read()", "__import__('sys').stdin.read()"])
def test_large_input_arrives_whole(boxed: Sandbox, read: str) -> None:
    assert boxed.run(Program(f"print(len({read}))", stdin="é" * 2_000_000), SHORT).stdout == "2000000\n"


def test_processor_time_is_limited_before_the_clock(boxed: Sandbox) -> None:
    run = boxed.run(Program("while True:\n    pass"), Limits(cpu_s=1.0, wall_s=60.0))
    assert run.status == "timeout"
    assert run.cpu_s == pytest.approx(1.0, abs=0.3)  # the kernel splits ticks between user and system time


def test_a_program_that_ignores_its_processor_limit_is_ended(boxed: Sandbox) -> None:
    source = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass"
    run = boxed.run(Program(source), Limits(cpu_s=1.0, wall_s=60.0))
    assert (run.status, run.exit_code) == ("timeout", -signal.SIGKILL)


def test_memory_up_to_the_limit_can_be_used(boxed: Sandbox) -> None:
    fits, bursts = (Program(f"print(len(bytearray({size << 20})))") for size in (100, 300))
    assert boxed.run(fits, SHORT).status == "ok"
    assert boxed.run(bursts, SHORT).status == "memory"


def test_several_programs_run_at_once_and_results_keep_their_order(boxed: Sandbox) -> None:
    programs = [Program(f"import time\ntime.sleep({1.0 - i / 10})\nprint({i})") for i in range(4)]
    start = time.monotonic()
    runs = boxed.run_many(programs, Limits(wall_s=30.0))
    # one after the other they take 1.0 + 0.9 + 0.8 + 0.7 = 3.4 s
    assert time.monotonic() - start < 3.0
    assert [run.stdout for run in runs] == ["0\n", "1\n", "2\n", "3\n"]


def test_a_program_that_hangs_holds_up_its_own_worker_only(boxed: Sandbox) -> None:
    with ThreadPoolExecutor(1) as thread:
        hanging = thread.submit(boxed.run, Program("import time\ntime.sleep(1000)"), Limits(wall_s=10.0))
        runs = boxed.run_many([Program("print(1)")] * 3, SHORT)
        assert not hanging.done()
        assert [run.stdout for run in runs] == ["1\n"] * 3
        run = hanging.result()
    assert run.status == "timeout"
    assert 10.0 <= run.wall_s < 15.0


def test_boxes_end_when_the_callers_process_is_killed(boxed: Sandbox) -> None:
    mark = f"m{secrets.token_hex(6)}"
    program = f"import ctypes, time\nctypes.CDLL(None).prctl(15, b'{mark}')\ntime.sleep(1000)"
    caller = f"""
from srpo_envs.sandbox import Limits, Program, Sandbox
Sandbox(num_workers=1).run(Program({program!r}), Limits(wall_s=4.0))
"""
    with subprocess.Popen([sys.executable, "-c", caller], env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        wait_until(lambda: mark in names_of_processes())
        process.kill()
    wait_until(lambda: mark not in names_of_processes())


def names_of_processes() -> set[str]:
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            names.add(path.read_text().strip())
    return names


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_programs_leave_nothing_to_each_other(boxed: Sandbox) -> None:
    look = "import os\nprint(os.path.exists('note'))\nopen('note', 'w').write('x')"
    assert {run.stdout for run in boxed.run_many([Program(look)] * 8, SHORT)} == {"False\n"}


def test_session_runs_scripts_afresh(boxed: Sandbox) -> None:
    source = "import builtins\nbuiltins.n = getattr(builtins, 'n', 0) + int(input())\nprint(builtins.n)"
    with boxed.session(source, SHORT) as session:
        assert [session.run(str(i)).stdout for i in (1, 2, 3)] == ["1\n", "2\n", "3\n"]


def test_session_survives_a_run_over_its_limits(boxed: Sandbox) -> None:
    with boxed.session("n = int(input())\nwhile n:\n    pass\nprint('done')", SHORT) as session:
        assert [session.run(text).status for text in ("0", "1", "0")] == ["ok", "timeout", "ok"]


def test_calls_share_a_process_until_one_is_lost(boxed: Sandbox) -> None:
    source = "n = 0\ndef f(x):\n    global n\n    n += 1\n    while x < 0:\n        pass\n    return n"
    with boxed.session(source, SHORT) as session:
        runs = [session.call("f", [x]) for x in (1, 1, -1, 1)]
    assert [(run.status, run.value) for run in runs] == [("ok", 1), ("ok", 2), ("timeout", None), ("ok", 1)]


def test_scripts_and_calls_can_alternate(boxed: Sandbox) -> None:
    with boxed.session("def f():\n    return 1\nprint(__name__)", SHORT) as session:
        done = [session.run(), session.call("f"), session.run(), session.call("f")]
    assert [run.stdout for run in done] == ["__main__\n", "", "__main__\n", ""]
    assert [run.value for run in done] == [None, 1, None, 1]


def test_call_passes_keywords_prints_and_types(boxed: Sandbox) -> None:
    with boxed.session("def f(a, *, b):\n    print(a)\n    return a, b, {1: {2}}", SHORT) as session:
        run = session.call("f", ["x"], {"b": 10**20})
    assert run.stdout == "x\n"
    encoded = {"tuple": ["x", {"int": hex(10**20)}, {"dict": [[1, {"set": [2]}]]}]}
    assert run.value == encoded


def test_main_blocks_do_not_run_when_a_module_is_loaded(boxed: Sandbox) -> None:
    with boxed.session("def f():\n    return 1\nif __name__ == '__main__':\n    raise ValueError", SHORT) as session:
        assert session.call("f").value == 1


def test_missing_function_is_the_programs_error(boxed: Sandbox) -> None:
    with boxed.session("x = 1", SHORT) as session:
        run = session.call("f")
    assert (run.status, run.stderr) == ("error", "NameError: name 'f' is not defined\n")


def test_packages_are_there_when_named_and_only_then(boxed: Sandbox) -> None:
    use = Program("import numpy\nprint(numpy.arange(4).sum())\nnumpy.linalg.inv(numpy.eye(3))")
    assert "No module named 'numpy'" in boxed.run(use).stderr
    with Sandbox(num_workers=1, packages=("numpy",)) as with_numpy:
        run = with_numpy.run(use)
        assert (run.stdout, run.stderr) == ("6\n", "")


def test_unknown_package_is_named() -> None:
    with pytest.raises(SandboxError, match="'no_such_package'"):
        Sandbox(packages=("no_such_package",))


def test_lost_keeper_is_broken_surroundings_and_is_replaced(boxed: Sandbox) -> None:
    with Sandbox(num_workers=1) as own:
        with pytest.raises(SandboxError, match="keeper ended"), own.session("print(1)", SHORT) as session:
            os.kill(session._keeper._process.pid, signal.SIGKILL)
            session.run()
        assert own.run(Program("print(1)"), SHORT).stdout == "1\n"
    assert issubclass(SandboxError, SurroundingsError)


def test_closing_ends_every_process(boxed: Sandbox) -> None:
    before = num_children()
    own = Sandbox(num_workers=2)
    own.run_many([Program("print(1)")] * 2)
    assert num_children() > before
    own.close()
    own.close()
    assert num_children() == before
    assert own.run(Program("print(1)")).stdout == "1\n"
    own.close()


def fake_bubblewrap(folder: Path, script: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_machine_that_denies_namespaces_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "bwrap: No permissions to create new namespace"
    path = fake_bubblewrap(tmp_path, f"echo '{said}' >&2; exit 1")
    monkeypatch.setattr(sandbox, "find_bubblewrap", lambda: path)
    before = num_children()
    with pytest.raises(SandboxError, match=f"{said}.*user namespaces.*isolation=.rlimits"):
        Sandbox(num_workers=1)
    assert num_children() == before


def test_missing_bubblewrap_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxError, match=r"srpo\[code\]"):
        Sandbox()


def test_unknown_isolation_is_refused() -> None:
    with pytest.raises(ValueError, match="'none'"):
        Sandbox(isolation="none")  # type: ignore[arg-type]


def test_weaker_mode_holds_limits_and_denies_processes_and_sockets() -> None:
    try:
        weak = Sandbox(num_workers=2, isolation="rlimits")
    except SandboxError as error:
        assert os.geteuid() == 0
        pytest.skip(str(error))
    with weak:
        attempts = ["os.fork()", "os.kill(os.getppid(), 0)", "socket.socket()", "os.setsid()", "signal.raise_signal(9)"]
        for attempt in attempts:
            run = weak.run(Program(f"import os, signal, socket\n{attempt}"), SHORT)
            assert "PermissionError" in run.stderr, attempt
        assert weak.run(Program("x = [0] * 10**10"), SHORT).status == "memory"
        assert weak.run(Program("while True:\n    print('x' * 1000)"), SHORT).status == "output"
        assert weak.run(Program("while True:\n    pass"), SHORT).status == "timeout"
        assert weak.run(Program("import os\nprint(dict(os.environ), os.listdir())"), SHORT).stdout.endswith(
            "['main.py']\n"
        )
