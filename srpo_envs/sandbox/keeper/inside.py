"""The first process in a box: forks one process for each request, reports how it ended, and clears up after it.

It runs as `python -E -s -S inside.py REQUESTS REPLIES` on file descriptors given by the keeper: 0 empty, 1 and 2 the
output of programs, and the two named ones: requests as marshalled objects behind their length, replies as one JSON
object a line. Marshal needs no import and is safe from the keeper; from a box only JSON is read. Nothing here decides
anything: a program that takes over its own box can change what it printed and what it returned, and that is all that
leaves a box.

A program runs in a forked child under limits and a filter of system calls that it cannot lift. Three kinds exist: a
*script* is the source run as `main.py` with an input; a *module* is the source loaded once, whose functions are then
called; a *checker* is trusted test code whose candidate is called through the keeper in another box.

Every box pays for what is imported here, so modules that only some requests need are imported late.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import marshal
import os
import resource
import sys

from plain import MEMORY_EXIT, decode, dumps, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

REQUESTS, REPLIES = map(int, sys.argv[1:])
SCRIPT_NAME = "main.py"
_HERE = os.path.dirname(__file__)
_SIGKILL = 9
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


def _receive() -> dict[str, Any]:
    """Return the next request, an empty one at their end."""
    header = _read(4)
    request: dict[str, Any] = marshal.loads(_read(int.from_bytes(header, "little"))) if header else {}
    return request


def _read(num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes and (chunk := os.read(REQUESTS, num_bytes - len(data))):
        data += chunk
    return bytes(data)


def _say(line: str) -> None:
    """Send a reply."""
    _write(REPLIES, line.encode() + b"\n")


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# --- the first process --------------------------------------------------------------------------------------------


def serve() -> dict[str, Any] | None:
    """Answer requests until they end; returns, in a child, the request it has to carry out."""
    setup = _receive()
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    _prctl(_PR_SET_DUMPABLE, 0)  # closes /proc/1 to programs, which run as the same user
    with open(SCRIPT_NAME, "wb") as file:
        file.write(setup["source"].encode("utf-8", "surrogatepass"))
    gc.freeze()  # children neither traverse nor copy what is here
    _say('{"ready": true}')
    while request := _receive():
        if (pid := os.fork()) == 0:
            return setup | request
        _say(_wait(pid))
    return None


def _wait(pid: int) -> str:
    """Wait for a child, end whatever else still runs in the box, and say how the child ended."""
    _, status, usage = os.wait4(pid, 0)
    if os.getpid() == 1:
        _end_all_others()
    return f'{{"exit": {os.waitstatus_to_exitcode(status)}, "cpu_s": {usage.ru_utime + usage.ru_stime:.6f}}}'


def _end_all_others() -> None:
    try:
        os.kill(-1, _SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


# --- its children -------------------------------------------------------------------------------------------------


def confine(job: dict[str, Any]) -> None:
    """Give up, for good, what a program must not have."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    _prctl(_PR_SET_DUMPABLE, 1)
    for name, (soft, hard) in job["rlimits"].items():
        number = getattr(resource, name)
        _, given = resource.getrlimit(number)
        highest = hard if given == resource.RLIM_INFINITY else min(hard, given)
        resource.setrlimit(number, (min(soft, highest), highest))
    _install_filter(bytes.fromhex(job["filter"]))
    sys.path[:] = [*job["path"], *(entry for entry in sys.path if entry != _HERE)]


def run_script(job: dict[str, Any]) -> None:
    """Run the source as a program of its own."""
    stdin = os.memfd_create("stdin")
    _write(stdin, job["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    for descriptor in (stdin, REQUESTS, REPLIES):
        os.close(descriptor)
    confine(job)
    sys.argv[:] = [SCRIPT_NAME, *job["args"]]
    main = _new_module("__main__")
    main.__file__ = SCRIPT_NAME
    try:
        code = _exit_code(lambda: _execute(job["source"], main))
        _finish(main)
    except MemoryError:
        code = MEMORY_EXIT
    os._exit(code)


def _exit_code(work: Callable[[], None]) -> int:
    """Do the work and return the exit code that the interpreter would end with."""
    try:
        work()
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            return (request.code or 0) & 0xFF
        sys.stderr.write(f"{request.code}\n")
        return 1
    except MemoryError:
        os.write(2, b"MemoryError\n")
        return int(MEMORY_EXIT)
    except BaseException:
        sys.stderr.write(_trace())
        return 1
    return 0


def _finish(main: ModuleType) -> None:
    """Do what the interpreter does at its end, less the costly part: freeing every module."""
    if threading := sys.modules.get("threading"):
        threading._shutdown()
    atexit._run_exitfuncs()
    _flush_output()
    main.__dict__.clear()
    gc.collect()  # open files write what they hold when they are freed
    _flush_output()


def _new_module(name: str) -> ModuleType:
    sys.modules[name] = type(sys)(name)
    return sys.modules[name]


def _execute(source: str, module: ModuleType, name: str = SCRIPT_NAME) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)


def _trace() -> str:
    """Return the traceback of the current error from the program's first frame on."""
    import traceback  # late: most programs end without one

    kind, error, frames = sys.exc_info()
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(kind, error, frames))


def serve_module(job: dict[str, Any]) -> None:
    """Load the source, then answer calls of its functions until the requests end."""
    confine(job)
    module = _new_module("solution")
    _answer(_execute, job["source"], module)
    while call := _receive():
        _answer(_call, module, call)


def _call(module: ModuleType, call: dict[str, Any]) -> Any:
    """Return what a function of the module returned, encoded."""
    arguments, keywords = decode(call["args"]), decode(call["kwargs"])
    function = getattr(module, call["function"], None)
    if function is None and hasattr(module, "Solution"):
        function = getattr(module.Solution(), call["function"])
    if function is None:
        raise NameError(f"name {call['function']!r} is not defined")
    return encode(function(*arguments, **keywords))


def _answer(work: Callable[..., Any], *arguments: Any) -> None:
    """Do the work and say what it returned, or what it raised."""
    try:
        line = dumps({"value": work(*arguments)})
    except BaseException as error:
        is_memory = isinstance(error, MemoryError)
        trace = "MemoryError" if is_memory else _trace()[-4000:]
        line = dumps({"error": type(error).__name__, "trace": trace})
    _flush_output()
    _say(line)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        try:
            stream.flush()  # type: ignore[union-attr]  # the program may have put anything here
        except Exception:
            continue


class CandidateError(Exception):
    """The candidate raised an error whose type the checker does not know."""


def serve_checker(job: dict[str, Any]) -> None:
    """Run pieces of trusted test code; the candidate they call lives in another box."""
    confine(job)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        _say(dumps({"call": {"args": encode(list(args)), "kwargs": encode(kwargs)}}))
        reply = _receive()
        if "error" in reply:
            raise _known_error(reply["error"])(reply["trace"])
        return decode(reply["value"])

    module = _new_module("checks")
    _answer(_execute, job["source"], module, "support.py")
    module.__dict__.update({"candidate": candidate, job["function"]: candidate})
    while request := _receive():
        _answer(_execute, request["code"], module, "checks.py")


def _known_error(name: str) -> type[Exception]:
    """Return the built-in error of that name.

    Exits and interrupts are no errors, and the ends of iterations would end loops of the test code as if all were well.
    """
    import builtins

    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception) and not name.startswith("Stop"):
        return found
    return CandidateError


def main() -> None:
    """Serve, and in a child carry out its one request."""
    kinds = {"script": run_script, "module": serve_module, "checker": serve_checker}
    job = serve()
    if job is not None:
        kinds[job["kind"]](job)
        os._exit(0)


if __name__ == "__main__":
    main()
