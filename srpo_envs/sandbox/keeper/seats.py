"""What one program did, as data: a seat keeps a program's box, replaces it when it is lost and names each outcome."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from typing import Any

from .box import Box, Message, Output, Overrun
from .plain import MEMORY_EXIT

Report = dict[str, Any]
"""The fields of a `Run`."""


class Seat:
    """One program and the box it runs in.

    Args:
        open_box: starts a box from its first message.
        setup: that message: source, filter, import path and limits of the kernel.
        limits: the fields of `Limits`.
    """

    def __init__(self, open_box: Callable[[Message], Box], setup: Message, limits: dict[str, Any]) -> None:
        self._open_box = open_box
        self._setup = setup
        self._limits = limits
        self._box: Box | None = None
        self._is_loaded = False

    def run_script(self, stdin: str, args: list[str]) -> Report:
        """Run the source as a program with an input."""
        if self._is_loaded:  # the process of the module would take the request for a call
            self.close()
        cpu_s = math.ceil(self._limits["cpu_s"])
        rlimits = self._setup["rlimits"] | {"RLIMIT_CPU": (cpu_s, cpu_s + 1)}  # SIGXCPU, which can be ignored, SIGKILL
        request = {"kind": "script", "stdin": stdin, "args": args, "rlimits": rlimits}
        return self._ask(request, self._limits["wall_s"], is_script=True)

    def call(self, function: str, args: Any, kwargs: Any, limit_s: float) -> Report:
        """Call a function of the source, which is loaded first where it is not."""
        if not (self._is_loaded and self.is_alive):
            loading = self._ask({"kind": "module"}, limit_s)
            if loading["status"] != "ok":
                self.close()
                return loading
            self._is_loaded = True
        done = self._ask({"function": function, "args": args, "kwargs": kwargs}, limit_s)
        return report("killed") if "call" in done else done

    def load_checks(self, support: str, function: str) -> Report:
        """Start a process for trusted test code; `end_checks` ends it and leaves the box for the next."""
        return self._ask({"kind": "checker", "source": support, "function": function}, self._limits["wall_s"])

    def end_checks(self) -> None:
        """End the process of test code."""
        if self.is_alive:
            self._ask({}, self._limits["wall_s"])

    def check(self, code: str, candidate: Callable[[Message, float], Report]) -> tuple[Report, Report]:
        """Run one piece of test code whose calls go to `candidate`.

        Returns:
            The report on the test code and the last one on the candidate; the time of both is limited separately.
        """
        checker_left_s = candidate_left_s = self._limits["wall_s"]
        request: Message = {"code": code}
        last: Report = report("ok")
        while True:
            done = self._ask(request, checker_left_s)
            checker_left_s -= done["wall_s"]
            if "call" not in done:
                return done, last
            last = candidate(done["call"], candidate_left_s)
            candidate_left_s -= last["wall_s"]
            if last["status"] not in ("ok", "error"):
                self.close()
                return report("error"), last
            request = {name: last[name] for name in ("value", "error", "trace") if name in last}

    @property
    def is_alive(self) -> bool:
        """Whether there is a box."""
        return self._box is not None and self._box.is_alive

    def close(self) -> None:
        """End the box; the next request starts another."""
        if self._box is not None:
            self._box.kill()
            self._box, self._is_loaded = None, False

    def _ask(self, request: Message, limit_s: float, *, is_script: bool = False) -> Report:
        if self._box is None or not self._box.is_alive:
            self._box = self._open_box(self._setup)
        output = Output(limit_bytes=self._limits["output_bytes"])
        start = time.monotonic()
        try:
            message = self._box.ask(request, output, limit_s)
            outcome = _script_end(message, self._limits["cpu_s"]) if is_script else _reply(message)
        except Overrun as overrun:
            outcome = report(str(overrun))
        if outcome["status"] in ("killed", "timeout"):
            self.close()
        texts = {"stdout": _text(output.stdout, output.limit_bytes), "stderr": _text(output.stderr, output.limit_bytes)}
        texts["stderr"] += outcome.get("trace", "")
        return outcome | texts | {"wall_s": time.monotonic() - start}


def report(status: str, exit_code: int | None = None, cpu_s: float = 0.0, **more: Any) -> Report:
    """Return a report without output."""
    return {"status": status, "exit_code": exit_code, "cpu_s": cpu_s, "wall_s": 0.0, "stdout": "", "stderr": "", **more}


def _script_end(message: Message | None, cpu_limit_s: float) -> Report:
    """Name how a script ended."""
    match message:
        case {"exit": int(code), "cpu_s": int() | float() as cpu_s}:
            return report(_exit_status(code, float(cpu_s), cpu_limit_s), code, float(cpu_s))
    return report("killed")


def _reply(message: Message | None) -> Report:
    """Name what a module or test code replied; a program may have written it, so any shape can come.

    A process that ended has not answered, however well it ended.
    """
    match message:
        case {"value": value}:
            return report("ok", value=value)
        case {"error": str(name), "trace": str(trace)}:
            return report("memory" if name == "MemoryError" else "error", error=name, trace=trace)
        case {"call": {"args": args, "kwargs": kwargs}}:
            return report("ok", call={"args": args, "kwargs": kwargs})
    return report("killed")


def _exit_status(code: int, cpu_s: float, cpu_limit_s: float) -> str:
    if code == 0:
        return "ok"
    if code == MEMORY_EXIT:
        return "memory"
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_s >= cpu_limit_s):
        return "timeout"
    return "killed" if code < 0 else "error"


def _text(data: bytearray, limit_bytes: int) -> str:
    return bytes(data[:limit_bytes]).decode("utf-8", "replace")
