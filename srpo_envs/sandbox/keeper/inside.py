"""The first process in a box: forks one process for each request, reports how it ended, and clears up after it.

It runs as `python -E -s -S inside.py REQUESTS REPLIES` on file descriptors given by the keeper: 0 empty, 1 and 2 the
output of programs, and the two named ones, both one JSON object a line. Nothing here decides anything: a program that takes over its own box
can change what it printed and what it returned, and that is all that leaves a box.

A program runs in a forked child under limits and a filter of system calls that it cannot lift. Three kinds exist: a
*script* is the source run as `main.py` with an input; a *module* is the source loaded once, whose functions are then
called; a *checker* is trusted test code whose candidate is called through the keeper in another box.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import resource
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any, BinaryIO

from plain import MEMORY_EXIT, decode, encode

REQUESTS, REPLIES = map(int, sys.argv[1:])
SCRIPT_NAME = "main.py"
_HERE = os.path.dirname(__file__)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_FILTER_MODE = 2

_libc = ctypes.CDLL(None, use_errno=True)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _prctl(option: int, *arguments: object) -> None:
    """Call `prctl` and raise its error."""
    padded = [*arguments, 0, 0, 0, 0][:4]
    if _libc.prctl(option, *(ctypes.c_ulong(item) if isinstance(item, int) else item for item in padded)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def _install_filter(instructions: bytes) -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    program = _FilterProgram(len(instructions) // 8, instructions)
    _prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program))


def _say(message: dict[str, Any]) -> None:
    _write(REPLIES, json.dumps(message).encode() + b"\n")


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# --- the first process --------------------------------------------------------------------------------------------


def serve(requests: BinaryIO) -> dict[str, Any] | None:
    """Answer requests until they end; returns, in a child, the request it has to carry out."""
    setup = json.loads(requests.readline())
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_DUMPABLE, 0)  # closes /proc/1 to programs, which run as the same user
    with open(SCRIPT_NAME, "wb") as file:
        file.write(setup["source"].encode("utf-8", "surrogatepass"))
    _say({"ready": True})
    while line := requests.readline():
        request = json.loads(line)
        if (pid := os.fork()) == 0:
            return setup | request
        _say({"exit": _wait(pid)})
    return None


def _wait(pid: int) -> dict[str, Any]:
    """Wait for a child, end whatever else still runs in the box, and say how the child ended."""
    start = time.monotonic()
    _, status, usage = os.wait4(pid, 0)
    wall_s = time.monotonic() - start
    if os.getpid() == 1:
        _end_all_others()
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code, "cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall_s}


def _end_all_others() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


# --- its children -------------------------------------------------------------------------------------------------


def confine(job: dict[str, Any]) -> None:
    """Give up, for good, what a program must not have."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_DUMPABLE, 1)
    for name, value in job["rlimits"].items():
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    _install_filter(bytes.fromhex(job["filter"]))
    sys.path[:] = [*job["path"], *(entry for entry in sys.path if entry != _HERE)]


def run_script(job: dict[str, Any]) -> None:
    """Run the source as a program of its own; the interpreter then ends as it always does."""
    stdin = os.memfd_create("stdin")
    _write(stdin, job["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    for descriptor in (stdin, REQUESTS, REPLIES):
        os.close(descriptor)
    confine(job)
    sys.argv[:] = [SCRIPT_NAME, *job["args"]]
    main = types.ModuleType("__main__")
    main.__file__ = SCRIPT_NAME
    sys.modules["__main__"] = main
    try:
        _execute(job["source"], main)
    except MemoryError:
        os.write(2, b"MemoryError\n")
        os._exit(MEMORY_EXIT)
    except Exception:
        sys.stdout.flush()
        sys.stderr.write(_trace())
        sys.exit(1)


def _execute(source: str, module: types.ModuleType, name: str = SCRIPT_NAME) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)


def _trace() -> str:
    """Return the traceback of the current error from the program's first frame on."""
    import traceback  # late: most programs end without one

    _, error, frames = sys.exc_info()
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, json.__file__):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def serve_module(job: dict[str, Any], requests: BinaryIO) -> None:
    """Load the source, then answer calls of its functions until the requests end."""
    confine(job)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    _answer(lambda: _execute(job["source"], module))
    while line := requests.readline():
        call = json.loads(line)
        _answer(lambda call=call: encode(_call(module, call)))


def _call(module: types.ModuleType, call: dict[str, Any]) -> Any:
    arguments, keywords = decode(call["args"]), decode(call["kwargs"])
    function = getattr(module, call["function"], None)
    if function is None and hasattr(module, "Solution"):
        function = getattr(module.Solution(), call["function"])
    if function is None:
        raise NameError(f"name {call['function']!r} is not defined")
    return function(*arguments, **keywords)


def _answer(work: Callable[[], Any]) -> None:
    """Do the work and say what it returned, or what it raised."""
    try:
        line = json.dumps({"value": work()})
    except BaseException as error:
        is_memory = isinstance(error, MemoryError)
        trace = "MemoryError" if is_memory else _trace()[-4000:]
        line = json.dumps({"error": type(error).__name__, "trace": trace})
    _flush_output()
    _write(REPLIES, line.encode() + b"\n")


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


class CandidateError(Exception):
    """The candidate raised an error whose type the checker does not know."""


def serve_checker(job: dict[str, Any], requests: BinaryIO) -> None:
    """Run pieces of trusted test code; the candidate they call lives in another box."""
    confine(job)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        _say({"call": {"args": encode(list(args)), "kwargs": encode(kwargs)}})
        reply = json.loads(requests.readline())
        if "error" in reply:
            raise _known_error(reply["error"])(reply["trace"])
        return decode(reply["value"])

    module = types.ModuleType("checks")
    sys.modules["checks"] = module
    _answer(lambda: _execute(job["source"], module, "support.py"))
    module.candidate = candidate
    if job["function"].isidentifier():
        setattr(module, job["function"], candidate)
    while line := requests.readline():
        code = json.loads(line)["code"]
        _answer(lambda code=code: _execute(code, module, "checks.py"))


def _known_error(name: str) -> type[Exception]:
    """Return the built-in error of that name; exits and interrupts are no errors."""
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else CandidateError


def main() -> None:
    """Serve, and in a child carry out its one request."""
    requests = os.fdopen(REQUESTS, "rb", closefd=False)
    job = serve(requests)
    if job is None:
        return
    if job["kind"] == "script":
        run_script(job)
    elif job["kind"] == "module":
        serve_module(job, requests)
    else:
        serve_checker(job, requests)


if __name__ == "__main__":
    main()
